-- An ended request that is neither good nor bad, because a threshold needs a value that is not known.
$good IS NULL
