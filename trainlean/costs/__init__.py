"""What a training costs: measured, predicted, modelled."""
