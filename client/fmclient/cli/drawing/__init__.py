"""Pictures of a cluster: what is drawn (shapes.py), where (cluster.py and below), and how it is written (svg.py, png.py)."""
