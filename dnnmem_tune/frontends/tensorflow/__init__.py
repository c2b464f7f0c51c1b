"""TensorFlow: a training step traced as a graph, optimised for a GPU that is not there.

This module imports no framework. In the worker a model is built without its weights, the step
is traced by ``tf.function``, optimised by TensorFlow's own Grappler on a virtual GPU, and
lowered to a ``Graph``; nothing of it is ever run.
"""
