"""How nodes are joined, and where that is written down: graph.py derives the Topology, clusterfile.py and clustertext.py read and
write the Cluster file, generate.py makes up clusters. Pure.
"""
