"""How a configuration's figures moved: by time or by commit, with bands, steps and notes."""
