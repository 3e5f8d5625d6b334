"""The semantic cache's decision: may the answer to an earlier question be given to this one? Pure, no I/O.

In the order in which a look-up uses them: `eligibility` (may this conversation ask at all), `profile` (what the guards
must know of a question), `guards` (reasons to refuse a candidate whatever the model says), `model` (the calibrated
probability that the answer fits), `evidence` (whether enough of what is served is right), `decision` (serve, explore or
reject) and `entry` (the life of a stored answer).
"""
