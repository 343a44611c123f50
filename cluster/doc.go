// Package cluster connects processes: the hardened remote of a node, its firewall, and the client of a gateway.
package cluster
