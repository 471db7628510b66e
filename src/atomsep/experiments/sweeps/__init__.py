"""Many runs: in parallel, searched over, compared."""
