"""One use case a file: collect reports, aggregate them, propose, apply and verify what balances a cluster."""
