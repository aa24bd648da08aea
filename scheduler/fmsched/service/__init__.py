"""gRPC in, errors out: parse, call, map. Reads are answered from the mirror, writes go through the leader's ledger."""
