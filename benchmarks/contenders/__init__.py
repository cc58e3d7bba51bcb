"""Those who take part in ``benchmarks/peers.py``, and what they are measured with."""
