"""Classes of fault, each as the gradients that it would give."""
