"""The verifier: does a kernel keep the contract of the operator it replaces?

A judge process draws inputs, evaluates a float64 oracle and compares; a suspect
process runs the candidate and sees inputs only. Start reading at `catalog`
(the twelve contracts), then `judge` (how a verdict is reached).
"""
