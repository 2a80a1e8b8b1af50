"""From vectors to codes and costs: encoders, how they are fitted, and vectors that are kept."""
