"""A judge for any pipeline: does a trainer compute the gradients of the plain loop?"""
