"""Figures of lesson 13: the simulator, the decision flowchart, groups and scores of the fusion analyser."""
