// Copies between host and device, and between devices.
#include "bridge/allocator.h"
#include "bridge/host_allocator.h"
#include "bridge/host_view.h"
#include "bridge/runtime.h"
#include "card/mutant.h"

#include <ATen/Functions.h>
#include <ATen/core/CachingHostAllocator.h>
#include <ATen/core/Tensor.h>
#include <ATen/native/Resize.h>
#include <c10/core/DeviceGuard.h>
#include <memory>
#include <torch/library.h>

namespace spyre::bridge {
namespace {

constexpr auto kSpyre = c10::DeviceType::PrivateUse1;
// Transfers of at least this size leave the submitting thread when the caller does not wait for them.
constexpr std::size_t kDetachedBytes = 64 * 1024;

card::Span span_of(const at::Tensor& tensor) {
  const void* token =
      SPYRE_MUTANT(storage_offset_dropped) ? tensor.storage().data() : tensor.const_data_ptr();
  return {Runtime::get().arena().position(token), tensor.nbytes()};
}

// Keeps the storages of both sides alive until the transfer has completed.
std::shared_ptr<void> keep(const at::Tensor& a, const at::Tensor& b) {
  return std::make_shared<std::pair<c10::Storage, c10::Storage>>(a.storage(), b.storage());
}

// Transfers start at a stick: a view that starts elsewhere goes through memory that does.
bool starts_at_stick(const at::Tensor& tensor) {
  return tensor.device().type() != kSpyre ||
         Runtime::get().arena().position(tensor.const_data_ptr()) % card::kStickBytes == 0;
}

// True when the bytes of both tensors, in memory order, are the same values: one transfer does it.
bool same_bytes(const at::Tensor& a, const at::Tensor& b) {
  return a.scalar_type() == b.scalar_type() && a.is_conj() == b.is_conj() && a.is_neg() == b.is_neg() &&
         a.sizes() == b.sizes() && a.strides() == b.strides() && a.is_non_overlapping_and_dense();
}

// A tensor on `device` with the dtype, sizes and bits of `like`, dense.
at::Tensor staging(const at::Tensor& like, c10::Device device) {
  at::Tensor result = at::empty(like.sizes(), like.options().device(device).memory_format(std::nullopt));
  result._set_conj(like.is_conj());
  result._set_neg(like.is_neg());
  return result;
}

void submit(card::Queue& queue, card::Operation operation, bool asynchronous, std::size_t nbytes) {
  operation.detached = asynchronous && nbytes >= kDetachedBytes;
  submit_to(queue, std::move(operation));
  if (!asynchronous)
    translated([&] { queue.synchronize(); });
}

void to_device(const at::Tensor& src, const at::Tensor& dst, bool asynchronous) {
  asynchronous = asynchronous && is_pinned(src.const_data_ptr());
  card::Queue& queue = current_queue(dst.device().index());
  submit(queue, {card::CopyToDevice{src.const_data_ptr(), span_of(dst)}, keep(src, dst)}, asynchronous,
         dst.nbytes());
}

void to_host(const at::Tensor& src, const at::Tensor& dst, bool asynchronous) {
  asynchronous = asynchronous && is_pinned(dst.const_data_ptr());
  card::Queue& queue = current_queue(src.device().index());
  submit(queue, {card::CopyToHost{span_of(src), dst.mutable_data_ptr()}, keep(src, dst)}, asynchronous,
         src.nbytes());
}

// The target's current stream does the copy after what the source's current stream was given so far, and
// holds back what the source's stream gets next.
void to_peer(const at::Tensor& src, const at::Tensor& dst) {
  card::Queue& from = current_queue(src.device().index());
  card::Queue& to = current_queue(dst.device().index());
  const auto ready = Runtime::get().events().create({});
  const auto done = Runtime::get().events().create({});
  submit_to(from, {card::EventSignal{ready, ready->announce()}});
  submit_to(to, {card::EventWait{ready, ready->version()}});
  submit_to(to, {card::CopyPeer{span_of(src), span_of(dst)}, keep(src, dst)});
  submit_to(to, {card::EventSignal{done, done->announce()}});
  submit_to(from, {card::EventWait{done, done->version()}});
}

// Same device: the copy kernel of the host on both tensors' memory. Converts, strides and expands.
void on_device(const at::Tensor& src, const at::Tensor& dst) {
  const c10::DeviceIndex device = dst.device().index();
  compute_on(device, [&] {
    HostViews views(device);
    at::Tensor target = views.view(dst);
    target.copy_(views.view(src));
  });
}

void transfer(const at::Tensor& src, const at::Tensor& dst, bool asynchronous) {
  const bool from_spyre = src.device().type() == kSpyre;
  const bool to_spyre = dst.device().type() == kSpyre;
  if (from_spyre && to_spyre)
    to_peer(src, dst);
  else if (to_spyre)
    to_device(src, dst, asynchronous);
  else
    to_host(src, dst, asynchronous);
}

at::Tensor copy_from(const at::Tensor& self, const at::Tensor& dst, bool non_blocking) {
  TORCH_CHECK(self.device().type() == kSpyre || dst.device().type() == kSpyre,
              "_copy_from needs a spyre tensor on one side, but got ", self.device(), " and ", dst.device());
  if (dst.numel() == 0 || self.is_same(dst))
    return dst;
  if (self.device() == dst.device()) {
    on_device(self, dst);
    return dst;
  }
  TORCH_CHECK_NOT_IMPLEMENTED((self.device().is_cpu() || self.device().type() == kSpyre) &&
                                  (dst.device().is_cpu() || dst.device().type() == kSpyre),
                              "no copy from ", self.device(), " to ", dst.device());
  check_has_memory(*self.unsafeGetTensorImpl());
  check_has_memory(*dst.unsafeGetTensorImpl());
  at::Tensor src = self.sizes() == dst.sizes() ? self : self.expand_as(dst);
  if (same_bytes(src, dst) && starts_at_stick(src) && starts_at_stick(dst)) {
    transfer(src, dst, non_blocking);
    return dst;
  }
  // Only dense bytes travel: the side where the source lives makes them dense, the other side converts and
  // places them.
  if (!src.is_non_overlapping_and_dense() || src.strides() != dst.strides() || !starts_at_stick(src)) {
    at::Tensor dense = staging(src, src.device());
    dense.copy_(src);
    src = std::move(dense);
  }
  const bool direct = same_bytes(src, dst) && starts_at_stick(dst);
  at::Tensor landed =
      direct ? dst : at::empty_strided(src.sizes(), src.strides(), src.options().device(dst.device()));
  if (!direct) {
    landed._set_conj(src.is_conj());
    landed._set_neg(src.is_neg());
  }
  transfer(src, landed, /*asynchronous=*/non_blocking && direct);
  if (!direct)
    dst.copy_(landed);
  return dst;
}

at::Tensor copy_from_and_resize(const at::Tensor& self, const at::Tensor& dst) {
  if (dst.sizes() != self.sizes())
    at::native::resize_output(dst, self.sizes());
  return copy_from(self, dst, /*non_blocking=*/false);
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, library) {
  library.impl("_copy_from", TORCH_FN(copy_from));
  library.impl("_copy_from_and_resize", TORCH_FN(copy_from_and_resize));
}

// Copies handle lazy conjugation and negation themselves. PyTorch says so for copy_ only; its fallback for
// other operators would clone the source first, and clone is a copy.
TORCH_LIBRARY_IMPL(aten, Conjugate, library) {
  library.impl("_copy_from", torch::CppFunction::makeFallthrough());
  library.impl("_copy_from_and_resize", torch::CppFunction::makeFallthrough());
}
TORCH_LIBRARY_IMPL(aten, Negative, library) {
  library.impl("_copy_from", torch::CppFunction::makeFallthrough());
  library.impl("_copy_from_and_resize", torch::CppFunction::makeFallthrough());
}

} // namespace
} // namespace spyre::bridge
