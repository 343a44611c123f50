// Command cluster runs three nodes on this machine, each a process, which share out the lanes of one queue. It shows which node
// serves which lanes and how many steps a second it runs, and kills one of them: watch its lanes move. It starts its own
// Postgres, and takes nothing else.
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
	if number := os.Getenv(envNode); number != "" {
		exit(runNode(number))
	}
	o := options{out: os.Stdout}
	flag.IntVar(&o.nodes, "nodes", 3, "how many nodes to run")
	flag.IntVar(&o.lanes, "lanes", 6, "how many lanes the queue has")
	flag.DurationVar(&o.ttl, "ttl", 3*time.Second, "how long a node is believed to live without a beat")
	flag.DurationVar(&o.kill, "kill", 8*time.Second, "when to kill a node; 0 = never, do it yourself: its process id is shown")
	flag.DurationVar(&o.restart, "restart", 8*time.Second, "how long after that to start it again")
	flag.DurationVar(&o.end, "for", 30*time.Second, "when to end; 0 = with Ctrl-C")
	flag.Parse()

	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	exit(run(ctx, o))
}

func exit(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, "cluster:", err)
		os.Exit(1)
	}
	os.Exit(0)
}
