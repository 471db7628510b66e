"""Many runs: trained in parallel, searched over, compared."""
