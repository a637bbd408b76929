"""The torch side: tensors, losses, adapters, updates on one process or many."""
