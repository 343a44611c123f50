module github.com/gendurable/gendurable/limiter/redis

go 1.26.0

replace github.com/gendurable/gendurable => ../../

require (
	github.com/gendurable/gendurable v0.0.0-00010101000000-000000000000
	github.com/redis/go-redis/v9 v9.23.0
	pgregory.net/rapid v1.3.0
)

require (
	github.com/cespare/xxhash/v2 v2.3.0 // indirect
	go.uber.org/atomic v1.12.0 // indirect
	golang.org/x/sys v0.50.0 // indirect
)
