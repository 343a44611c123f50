package redislimiter_test

import (
	"context"
	"fmt"
	"os"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/gendurable/gendurable/limiter"
	redislimiter "github.com/gendurable/gendurable/limiter/redis"
)

func connect() (limiter.Limiter, error) {
	client := redis.NewUniversalClient(&redis.UniversalOptions{
		Addrs:                 []string{os.Getenv("REDIS_ADDR")},
		ContextTimeoutEnabled: true,
	})
	limits, err := redislimiter.New(client, redislimiter.Options{Namespace: "orders", Lease: time.Minute})
	if err != nil {
		return nil, err
	}
	return limits, nil
}

// Calls are limited for two databases together. This needs a server, and so is compiled only.
func Example() {
	ctx := context.Background()
	limits, err := connect()
	if err != nil {
		fmt.Println(err)
		return
	}
	_, err = limits.SyncConfig(ctx, limiter.Config{
		Rates: []limiter.Rate{{Name: "stripe", Allowed: 100, Per: time.Second}},
		Gates: []limiter.Gate{{Name: "export", Limit: 4}},
	})
	fmt.Println(err)
}
