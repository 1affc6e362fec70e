// Operators that PyTorch composes for the CPU but expects accelerators to bring as one: convolutions and
// recurrent cells; and which kernel attention takes.
#include "bridge/host_kernel.h"

#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>
#include <ATen/native/transformers/attention.h>
#include <ATen/ops/_fused_sdp_choice_ops.h>
#include <array>
#include <optional>
#include <torch/library.h>
#include <tuple>

namespace spyre::bridge {
namespace {

using at::IntArrayRef;
using at::Tensor;

Tensor convolution(const Tensor& input, const Tensor& weight, const std::optional<Tensor>& bias,
                   IntArrayRef stride, IntArrayRef padding, IntArrayRef dilation, bool transposed,
                   IntArrayRef output_padding, int64_t groups) {
  Tensor output;
  on_host_views(input.device().index(), [&](HostViews& views) {
    std::optional<Tensor> host_bias;
    if (bias && bias->defined())
      host_bias = views.view(*bias);
    output = views.result(at::convolution(views.view(input), views.view(weight), host_bias, stride, padding,
                                          dilation, transposed, output_padding, groups));
  });
  return output;
}

std::tuple<Tensor, Tensor, Tensor> convolution_backward(const Tensor& grad_output, const Tensor& input,
                                                        const Tensor& weight, IntArrayRef stride,
                                                        IntArrayRef padding, IntArrayRef dilation,
                                                        bool transposed, IntArrayRef output_padding,
                                                        int64_t groups, std::array<bool, 3> mask) {
  const int64_t bias_size = transposed ? weight.size(1) * groups : weight.size(0);
  std::tuple<Tensor, Tensor, Tensor> gradients;
  on_host_views(input.device().index(), [&](HostViews& views) {
    auto [grad_input, grad_weight, grad_bias] = at::convolution_backward(
        views.view(grad_output), views.view(input), views.view(weight), IntArrayRef(bias_size), stride,
        padding, dilation, transposed, output_padding, groups, mask);
    gradients = {views.result(std::move(grad_input)), views.result(std::move(grad_weight)),
                 views.result(std::move(grad_bias))};
  });
  return gradients;
}

Tensor with_bias(const Tensor& gates, const std::optional<Tensor>& bias) {
  return bias && bias->defined() ? gates + *bias : gates;
}

// The workspace holds the activated gates side by side: input, forget, cell, output.
std::tuple<Tensor, Tensor, Tensor> lstm_cell(const Tensor& input_gates, const Tensor& hidden_gates,
                                             const Tensor& cx, const std::optional<Tensor>& input_bias,
                                             const std::optional<Tensor>& hidden_bias) {
  const auto gates = (with_bias(input_gates, input_bias) + with_bias(hidden_gates, hidden_bias)).chunk(4, 1);
  const Tensor in = gates[0].sigmoid();
  const Tensor forget = gates[1].sigmoid();
  const Tensor cell = gates[2].tanh();
  const Tensor out = gates[3].sigmoid();
  Tensor cy = forget * cx + in * cell;
  return {out * cy.tanh(), cy, at::cat({in, forget, cell, out}, 1)};
}

std::tuple<Tensor, Tensor, Tensor> lstm_cell_backward(const std::optional<Tensor>& grad_hy,
                                                      const std::optional<Tensor>& grad_cy, const Tensor& cx,
                                                      const Tensor& cy, const Tensor& workspace,
                                                      bool has_bias) {
  const bool from_hy = grad_hy && grad_hy->defined();
  const bool from_cy = grad_cy && grad_cy->defined();
  if (!from_hy && !from_cy)
    return {};
  const auto gates = workspace.chunk(4, 1);
  const Tensor &in = gates[0], &forget = gates[1], &cell = gates[2], &out = gates[3];
  const Tensor activated = cy.tanh();
  Tensor total = from_cy ? *grad_cy : at::zeros_like(cy);
  if (from_hy)
    total = total + *grad_hy * out * (1 - activated * activated);
  const Tensor grad_out = from_hy ? *grad_hy * activated * out * (1 - out) : at::zeros_like(out);
  Tensor grad_gates = at::cat({total * cell * in * (1 - in), total * cx * forget * (1 - forget),
                               total * in * (1 - cell * cell), grad_out},
                              1);
  Tensor grad_bias = has_bias ? grad_gates.sum(IntArrayRef(0)) : Tensor();
  return {grad_gates, total * forget, grad_bias};
}

// The workspace holds, side by side: reset gate, update gate, new gate, hx, and the hidden half of the new
// gate.
std::tuple<Tensor, Tensor> gru_cell(const Tensor& input_gates, const Tensor& hidden_gates, const Tensor& hx,
                                    const std::optional<Tensor>& input_bias,
                                    const std::optional<Tensor>& hidden_bias) {
  const auto in = with_bias(input_gates, input_bias).chunk(3, 1);
  const auto hidden = with_bias(hidden_gates, hidden_bias).chunk(3, 1);
  const Tensor reset = (in[0] + hidden[0]).sigmoid();
  const Tensor update = (in[1] + hidden[1]).sigmoid();
  const Tensor fresh = (in[2] + reset * hidden[2]).tanh();
  return {fresh + update * (hx - fresh), at::cat({reset, update, fresh, hx, hidden[2]}, 1)};
}

std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor> gru_cell_backward(const Tensor& grad_hy,
                                                                     const Tensor& workspace, bool has_bias) {
  const auto saved = workspace.chunk(5, 1);
  const Tensor &reset = saved[0], &update = saved[1], &fresh = saved[2], &hx = saved[3], &hidden = saved[4];
  const Tensor grad_update = grad_hy * (hx - fresh) * update * (1 - update);
  const Tensor grad_fresh = grad_hy * (1 - update) * (1 - fresh * fresh);
  const Tensor grad_reset = grad_fresh * hidden * reset * (1 - reset);
  Tensor grad_input = at::cat({grad_reset, grad_update, grad_fresh}, 1);
  Tensor grad_hidden = at::cat({grad_reset, grad_update, grad_fresh * reset}, 1);
  Tensor grad_input_bias = has_bias ? grad_input.sum(IntArrayRef(0)) : Tensor();
  Tensor grad_hidden_bias = has_bias ? grad_hidden.sum(IntArrayRef(0)) : Tensor();
  return {grad_input, grad_hidden, grad_hy * update, grad_input_bias, grad_hidden_bias};
}

// The card has the CPU's fused attention, so it is taken for the same sizes, dtypes and masks; else attention
// is composed. The choice reads sizes alone, never data.
int64_t attention_backend(const Tensor& query, const Tensor& key, const Tensor& value,
                          const std::optional<Tensor>& mask, double dropout, bool is_causal,
                          std::optional<double> scale, bool enable_gqa) {
  return at::_ops::_fused_sdp_choice::redispatch(c10::DispatchKeySet(c10::DispatchKey::CPU), query, key,
                                                 value, mask, dropout, is_causal, scale, enable_gqa);
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, library) {
  library.impl("convolution_overrideable", TORCH_FN(convolution));
  library.impl("convolution_backward_overrideable", TORCH_FN(convolution_backward));
  library.impl("_thnn_fused_lstm_cell", TORCH_FN(lstm_cell));
  library.impl("_thnn_fused_lstm_cell_backward_impl", TORCH_FN(lstm_cell_backward));
  library.impl("_thnn_fused_gru_cell", TORCH_FN(gru_cell));
  library.impl("_thnn_fused_gru_cell_backward", TORCH_FN(gru_cell_backward));
}

} // namespace
} // namespace spyre::bridge

namespace at::native {

REGISTER_PRIVATEUSE1_DISPATCH(_fused_sdp_choice_stub, &spyre::bridge::attention_backend);

} // namespace at::native
