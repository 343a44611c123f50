package main

import (
	"bufio"
	"bytes"
	_ "embed"
	"encoding/json"
	"fmt"
)

//go:embed orders.jsonl
var ordersFile []byte

// Order is one line of orders.jsonl, and the state of an order's instance.
type Order struct {
	Order    int    `json:"order"`
	Customer string `json:"customer"`
	Lines    []Line `json:"lines"`
	// PaidCents is what the payment signal said.
	PaidCents int `json:"paid_cents,omitempty"`
}

// Line is one line of an order.
type Line struct {
	Item       string `json:"item"`
	Quantity   int    `json:"quantity"`
	PriceCents int    `json:"price_cents"`
}

// total is what the customer owes, in cents.
func (o Order) total() int {
	sum := 0
	for _, l := range o.Lines {
		sum += l.Quantity * l.PriceCents
	}
	return sum
}

// The ends that an order may come to.
const (
	endShipped = "shipped"
	endInvalid = "invalid"
	endUnpaid  = "unpaid"
)

// expectation is an order of the input file and the end that the file says it must come to.
type expectation struct {
	Order
	Expect string `json:"expect"`
}

// readOrders reads the first limit orders of the input file; 0 = all.
func readOrders(limit int) ([]expectation, error) {
	var orders []expectation
	lines := bufio.NewScanner(bytes.NewReader(ordersFile))
	for lines.Scan() && (limit == 0 || len(orders) < limit) {
		var o expectation
		if err := json.Unmarshal(lines.Bytes(), &o); err != nil {
			return nil, fmt.Errorf("orders.jsonl, line %d: %w", len(orders)+1, err)
		}
		orders = append(orders, o)
	}
	return orders, lines.Err()
}
