"""Multi-dimensional deconvolution: the response of what lies below a line of receivers, from fields above it."""
