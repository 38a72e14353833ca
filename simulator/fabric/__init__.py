"""Floor 3, the topology as a networkx graph: routes, what crosses each link, capacities."""
