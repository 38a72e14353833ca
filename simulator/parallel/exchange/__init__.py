"""How tokens reach their experts and come back: one way a file, all with the same three steps.

dispatch brings tokens to the ranks of their experts, experts computes there, combine brings results back. `needs` and
`gives` say in which form a tensor-parallel group holds its tokens before and after (`border`), so that each way works
with every schedule, any number of micro-batches and drafts.
"""
