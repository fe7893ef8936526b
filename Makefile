# The commands of CI and of the developer. No logic of its own: that is in Cargo, .ci/run and tests/clients/run.
.PHONY: build test check bench e2e demo fmt docs render image

build: ## the program, target/release/eventweir
	cargo build --release

test: ## unit, golden, property and in-process tests
	cargo test

check: ## what CI runs
	.ci/run

bench: ## the benchmarks
	cargo bench

e2e: ## real clients against the started program
	.ci/run clients metrics

demo: ## a storm of events in simulated time
	cargo run --release -- demo

fmt: ## the layout of the source
	cargo fmt --all

docs: ## the crate's documentation, target/doc
	cargo doc --no-deps

render: ## deploy/, the chart's README and its schema, from the chart and the program
	.ci/run render

image: ## the image, for this machine
	docker build -t eventweir:$$(sed -n 's/^version = "\(.*\)"/\1/p' Cargo.toml | head -1) .
