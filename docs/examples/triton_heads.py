"""An up-projection in Triton as a newcomer might write it: right for whole tiles, and not for the last one."""

import triton
import triton.language as tl

from mla_verify import register


@triton.jit
def _kernel(x, w, out, tokens, rank, width, xt, xh, xr, wh, wr, wv, ot, oh, ov, BLOCK: tl.constexpr):  # noqa: N803
    head = tl.program_id(0)
    token, value = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK), tl.arange(0, BLOCK)
    total = tl.zeros((BLOCK, BLOCK), tl.float32)
    for start in range(0, rank, BLOCK):
        at = start + tl.arange(0, BLOCK)
        left = tl.load(x + head * xh + token[:, None] * xt + at[None, :] * xr, at[None, :] < rank, other=0.0)
        right = tl.load(w + head * wh + at[:, None] * wr + value[None, :] * wv, at[:, None] < rank, other=0.0)
        total = tl.dot(left, right, total, input_precision="ieee")
    where = out + head * oh + token[:, None] * ot + value[None, :] * ov
    tl.store(where, total.to(out.dtype.element_ty), value[None, :] < width)


@register(contract="up-projection", triton=True, v_head_dim=(1, 4, 16), num_heads=(1, 4))
def triton_heads(x, w_uv, out, **_):
    tokens, heads, rank = x.shape
    if tokens:
        grid = (heads, triton.cdiv(tokens, 16))
        strides = (*x.stride(), *w_uv.stride(), *out.stride())
        _kernel[grid](x, w_uv, out, tokens, rank, w_uv.shape[2], *strides, BLOCK=16)
