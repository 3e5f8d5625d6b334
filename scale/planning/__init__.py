"""How much hardware a load needs: sizes of models and devices, bounds, and a simulation with the engine's scheduler."""
