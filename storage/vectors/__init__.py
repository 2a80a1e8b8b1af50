"""Encoders, which turn vectors into codes and costs; fitting them; and keeping vectors."""
