"""How tokens reach their experts and come back: one way a file, all with the same steps.

dispatch (and arrive) brings tokens to the ranks of their experts, compute is done there, combine (and collect) brings
results back. `needs` and `gives` say in which form a tensor-parallel group holds its tokens before and after, so that
each way works with every schedule, any number of micro-batches and drafts.
"""
