# What the targets do is said by `make help`.

SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help

# No version stamp: git refuses to answer in a checkout that belongs to somebody else, and go then fails.
export GOFLAGS := $(filter-out -buildvcs=%,$(GOFLAGS)) -buildvcs=false

FUZZTIME ?= 10s

# Many tests wait most of the time: more of them at once than there are processors.
TESTFLAGS = -timeout 15m -parallel 6

BENCHFLAGS = $(if $(ONLY),-part targets -only "$(ONLY)",$(if $(filter quick,$(BENCH)),-part targets,$(if $(filter rxe,$(BENCH)),-part rxe )-docs docs/performance.md -json build))

# Of packages; before 1.0 a pre-release of 0.1.0.
VERSION ?= 0.1.0~dev

.PHONY: help build test lint race plain engines interop fuzz hostile recovery goodput reports perftest sim congestion bottleneck bench dropin dropintest dropinrxe package cross bigendian clean

help: ## this list
	@sed -n 's/^\([a-z]*\):.*## /\1	/p' $(MAKEFILE_LIST) | expand -t 10

test: ## all tests: packages for them (installed when root on Debian, unless NOINSTALL=1), lint, cross, race, plain, a covering subset of interop
	@test/all.sh

lint: ## gofmt, go vet (for Linux, macOS and Windows), staticcheck
	@out=$$(gofmt -l .); if [ -n "$$out" ]; then printf 'gofmt would change:\n%s\n' "$$out"; exit 1; fi
	go vet ./...
	GOOS=darwin CGO_ENABLED=0 go vet ./ib/... ./mem/... ./transport/... ./roce/... ./cmd/roce/...
	GOOS=windows CGO_ENABLED=0 go vet ./ib/... ./mem/... ./transport/... ./roce/... ./cmd/roce/...
	go tool -modfile=test/tools/go.mod staticcheck ./...

race: ## go test -race ./... (no root, no network but loopback)
	env -u GOROCE_INTEROP go test -race $(TESTFLAGS) ./...

plain: ## go test ./...: what the race detector leaves out, as allocations and most seeds of the simulator
	env -u GOROCE_INTEROP go test $(TESTFLAGS) ./...

interop: ## the whole product of interop cases against Linux rxe in QEMU; takes about an hour and writes docs/interop.md
	@echo "make interop: every interop case, on three kernels in QEMU, after the Debian packages for it"
	@test/interop/setup.sh || { status=$$?; [ $$status -ne 3 ] || echo "make interop: cannot run without these packages"; exit 1; }
	GOROCE_INTEROP=full GOROCE_TABLE=docs/interop.md go test -count=1 -timeout 6h -v ./test/interop

fuzz: ## every fuzz target for FUZZTIME (default 10s)
	@echo "make fuzz: every fuzz target for $(FUZZTIME)"
	@found=0; \
	while IFS=: read -r file name; do \
		found=$$((found + 1)); \
		echo "== $$name in $${file%/*}"; \
		go test -run '^$$' -fuzz "^$$name\$$" -fuzztime $(FUZZTIME) -fuzzminimizetime 10x "$${file%/*}"; \
	done < <(grep -rHo --include='*_test.go' '^func Fuzz[A-Za-z0-9_]*' . | sed 's/func //' | sort); \
	if [ $$found -eq 0 ]; then echo "make fuzz: no fuzz target found"; exit 1; fi

engines: ## the tests of package roce with several engines for each device, under the race detector
	for n in 2 3 4; do GOROCE_ENGINES=$$n go test -count=1 -race -timeout 5m ./roce || exit; done

hostile: ## the long forms of test/hostile: 100,000 devices that come and go, a flood of 1,000,000 packets, chaos under the race detector
	go test -count=1 -timeout 30m -v -run 'TestCycles|TestFlood' ./test/hostile -hostile.cycles 100000 -hostile.socketcycles 10000 -hostile.flood 1000000
	go test -race -count=1 -timeout 10m -v -run TestChaos ./test/hostile -hostile.chaos 20

recovery: ## the tables of docs/recovery.md: goodput under loss and reordering, in virtual time and between two network namespaces (root)
	@printf '| network | wire | WRITE | READ |\n|---|---|---|---|\n'
	@go test -count=1 ./test/sim -run 'TestGoodput$$' -v -sim.goodput=256 | sed -n 's/^ *goodput_test.go:[0-9]*: |/|/p'
	@echo; mkdir -p build && go build -o build/roce ./cmd/roce
	@test/recovery.sh build/roce

goodput: ## the table of docs/recovery.md against rxe and between two rxe, in guests (root, 10 minutes)
	@test/interop/setup.sh || { status=$$?; [ $$status -ne 3 ] || echo "make goodput: cannot run without these packages"; exit 1; }
	GOROCE_INTEROP=goodput go test -count=1 -timeout 1h -v ./test/interop -run TestGoodput

reports: ## roce interop against rxe of three kernels in guests (root, 10 minutes); writes docs/reports
	@test/interop/setup.sh || { status=$$?; [ $$status -ne 3 ] || echo "make reports: cannot run without these packages"; exit 1; }
	GOROCE_INTEROP=reports go test -count=1 -timeout 1h -v ./test/interop -run TestReports

perftest: ## each program of perftest 4.5 and 25.01 on rxe against roce perf, over each service, on three kernels in guests (root, 10 minutes); writes docs/reports
	@test/interop/setup.sh || { status=$$?; [ $$status -ne 3 ] || echo "make perftest: cannot run without these packages"; exit 1; }
	GOROCE_INTEROP=perftest go test -count=1 -timeout 1h -v ./test/interop -run 'TestPerftest$$'

sim: ## the long mode of test/sim: 10,000 seeds, 100 connections that end in each way there is, 8 hours of virtual time; takes about ten minutes
	go test -count=1 -timeout 2h -v ./test/sim -run 'TestSeeds$$|TestSoak$$' -sim.seeds 10000 -sim.soak 8h
	go test -count=1 -timeout 1h -v ./test/sim -run 'TestFailures$$' -sim.seeds 100

congestion: ## the standard experiments of congestion control in virtual time: the tables and charts of docs/simulation.md; takes about three minutes
	@go test -count=1 -v ./test/sim/congestion -run 'TestReport$$' -congestion.charts $(CURDIR)/docs/congestion | grep -v -e '^=== ' -e '^PASS'
	@printf '| senders | links | line rate | Jain after 50 ms | utilisation | dropped | packets sent again | timeouts | CNPs |\n|---|---|---|---|---|---|---|---|---|\n'
	@go test -count=1 ./test/sim -run 'TestCongested$$' -v -sim.congested | sed -n 's/^ *congested_test.go:[0-9]*: |/|/p'

bottleneck: ## the table of docs/congestion.md: processes of roce perf share a slow link with RED between two network namespaces (root, two minutes)
	@mkdir -p build && CGO_ENABLED=0 go build -o build/roce ./cmd/roce && go build -o build/bottleneck ./test/bottleneck
	@build/bottleneck -roce build/roce -runs 3

bench: ## roce perf against raw UDP, TCP and UCX in the same run, between two network namespaces (root); writes docs/performance.md. BENCH=quick: two minutes, printed; BENCH=rxe: rxe in guests; ONLY=write,tcp: these, printed
	@test/bench/setup.sh || [ $$? -eq 3 ]
	@mkdir -p build && CGO_ENABLED=0 go build -o build/roce ./cmd/roce && go build -o build/bench ./test/bench
	@CGO_ENABLED=0 go build -o build/agent ./test/interop/agent
	@build/bench -roce build/roce $(BENCHFLAGS)

dropin: ## build libibverbs.so.1 and librdmacm.so.1 into build/dropin (needs gcc, libibverbs-dev, librdmacm-dev), and build/roce for `roce exec`
	cmd/dropin/build.sh build/dropin
	go build -o build/roce ./cmd/roce

dropintest: ## all tests of the drop-in libraries, with programs of Debian's packages; most of them once more with sanitizers (15 minutes)
	@test/dropin/setup.sh || [ $$? -eq 3 ]
	@$(MAKE) --no-print-directory dropin
	go vet -tags dropin ./cmd/dropin
	ROCE_DROPIN=$(CURDIR)/build/dropin go test -count=1 -timeout 30m -v ./test/dropin -dropin.all
	go test -count=1 -timeout 30m -v ./test/dropin -dropin.all -dropin.sanitize -skip 'TestSymbols|TestUnprivileged|TestLdSoConf|TestContainer|TestTrixie|TestExec|TestDoctor|TestProviders'

dropinrxe: dropin ## programs of Debian on the drop-in libraries against the same ones on rxe of three kernels, and the speed of both (root, 20 minutes)
	@test/interop/setup.sh || { status=$$?; [ $$status -ne 3 ] || echo "make dropinrxe: cannot run without these packages"; exit 1; }
	GOROCE_INTEROP=dropin go test -count=1 -timeout 1h -v ./test/interop -run 'TestDropin'

build: ## build/roce, a static binary
	CGO_ENABLED=0 go build -trimpath -ldflags='-s -w -X main.version=$(VERSION)' -o build/roce ./cmd/roce

package: build ## a Debian package in build/, with man pages, completions and licences; and what the Containerfile says, without an engine
	packaging/check.sh "$$(packaging/deb.sh $(VERSION))"
	packaging/container.sh

cross: ## build the library and the command for Linux, macOS and Windows on amd64 and arm64
	@for os in linux darwin windows; do for arch in amd64 arm64; do \
		echo "$$os $$arch"; GOOS=$$os GOARCH=$$arch CGO_ENABLED=0 go build -o /dev/null ./cmd/roce; \
	done; done

bigendian: ## unit tests of ib, mem and transport on a big-endian machine (s390x, in qemu-user)
	@command -v qemu-s390x >/dev/null || { echo "make bigendian: no qemu-s390x; on Debian: apt-get install qemu-user"; exit 1; }
	GOARCH=s390x CGO_ENABLED=0 go test -count=1 -timeout 30m -exec qemu-s390x ./ib/... ./mem/... ./transport/...

clean: ## remove what builds and tests left in the checkout
	rm -rf build
