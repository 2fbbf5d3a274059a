"""The search algorithms, one file each, and the pieces that several of them share."""
