"""Tasks of the published methods: an arm, its unknown parameters, actions, what is seen and what is success."""
