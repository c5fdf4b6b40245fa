"""Cleave: a control plane for scalable topics. This package file imports nothing, so that every floor loads alone."""
