"""The same softmax with one value changed: lanes beyond the end of a row enter its sum."""

import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def softmax_kernel(x_ptr, y_ptr, width, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    columns = tl.arange(0, BLOCK)
    inside = columns < width
    x = tl.load(x_ptr + row * width + columns, mask=inside, other=0.0)
    e = tl.exp(x - tl.max(x, axis=0))
    tl.store(
        y_ptr + row * width + columns, e / tl.sum(e, axis=0), mask=inside
    )


class ModelNew(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x.contiguous()
        y = torch.empty_like(x)
        rows, width = x.shape
        softmax_kernel[(rows,)](
            x, y, width, BLOCK=triton.next_power_of_2(width)
        )
        return y
