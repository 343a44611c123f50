// Command demo runs an order pipeline over a file of orders in a worker process, kills that process with
// SIGKILL twice, and then proves from a ledger that every order reached the right end and that no committed step
// was lost or run again. It starts its own Postgres.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"syscall"
	"time"
)

func main() {
	if number := os.Getenv(envWorker); number != "" {
		exit(runWorker(number))
	}
	limit := flag.Int("orders", 0, "how many orders of the file to run; 0 = all")
	dir := flag.String("dir", ".devpg/demo", "where Postgres keeps its data between runs")
	timeout := flag.Duration("payment-timeout", 6*time.Second, "how long an order waits for its payment")
	flag.Parse()

	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	exit(runDemo(ctx, options{orders: *limit, dir: *dir, paymentTimeout: *timeout, out: os.Stdout}))
}

func exit(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, "demo:", err)
		os.Exit(1)
	}
	os.Exit(0)
}
