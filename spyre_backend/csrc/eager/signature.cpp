#include "eager/signature.h"

#include "bridge/allocator.h"

#include <bit>
#include <c10/core/DefaultDtype.h>
#include <c10/core/ScalarType.h>
#include <c10/core/TensorImpl.h>

namespace spyre::eager {
namespace {

// The first word of each part of a key.
enum Part : std::int64_t {
  None,
  Flag,
  Whole,
  Real,
  Complex,
  Text,
  List,
  Host,
  Tensor,
  WholeArgument,
  RealArgument
};

constexpr c10::DispatchKeySet kDense(c10::DispatchKey::PrivateUse1);

// A plain tensor of a device: strided, no lazy conjugation or negation, no subclass that dispatches by
// itself.
bool plain(const c10::TensorImpl& tensor) {
  return tensor.key_set() - bridge::kAboveDevice == kDense;
}

} // namespace

void Signature::add_bits(std::int64_t tag, double value) {
  key_.push_back(tag);
  key_.push_back(std::bit_cast<std::int64_t>(value));
}

const char* Signature::add_tensor(const at::Tensor& tensor, bool written) {
  const c10::TensorImpl& impl = *tensor.unsafeGetTensorImpl();
  if (!plain(impl))
    return impl.dim() == 0 && impl.is_cpu() && !written ? add_host_number(tensor)
                                                        : "an argument is no plain tensor of the device";
  const c10::Device device = impl.device();
  if (device_ == -1)
    device_ = device.index();
  else if (device_ != device.index())
    return "arguments are on several devices";
  if (impl.is_wrapped_number())
    return "an argument of the device stands for a Python number";
  const c10::DataPtr& data = impl.unsafe_storage().unsafeGetStorageImpl()->_mutable_data_ptr_no_checks();
  const bool empty = impl.numel() == 0;
  if (!empty && data.get() == nullptr)
    return "an argument has no memory";
  if (written && !empty && bridge::lease_of(data) == nullptr)
    return "an argument that is written has memory of somebody else";
  const c10::IntArrayRef sizes = impl.sizes();
  const c10::IntArrayRef strides = impl.strides();
  key_.push_back(Tensor | static_cast<std::int64_t>(tensor.scalar_type()) << 8 |
                 static_cast<std::int64_t>(sizes.size()) << 16);
  key_.append(sizes.begin(), sizes.end());
  key_.append(strides.begin(), strides.end());
  const std::uint64_t offset = static_cast<std::uint64_t>(impl.storage_offset()) * impl.itemsize();
  arguments_.push_back({ProgramArgument::Kind::Tensor, written, &tensor,
                        empty ? 0 : reinterpret_cast<std::uintptr_t>(data.get()) + offset});
  return nullptr;
}

// A tensor of the host that stands for a Python number: its value travels, as other numbers do.
const char* Signature::add_host_number(const at::Tensor& tensor) {
  if (!tensor.unsafeGetTensorImpl()->is_wrapped_number())
    return "an argument is a tensor of the host";
  switch (tensor.scalar_type()) {
  case c10::ScalarType::Double:
    key_.push_back(RealArgument);
    arguments_.push_back({ProgramArgument::Kind::Real, false, nullptr,
                          std::bit_cast<std::uint64_t>(*tensor.const_data_ptr<double>())});
    return nullptr;
  case c10::ScalarType::Long:
    key_.push_back(WholeArgument);
    arguments_.push_back({ProgramArgument::Kind::Whole, false, nullptr,
                          std::bit_cast<std::uint64_t>(*tensor.const_data_ptr<std::int64_t>())});
    return nullptr;
  default:
    return "an argument stands for a number that is neither whole nor real";
  }
}

const char* Signature::add_list(const c10::IValue& value) {
  const auto items = value.toListRef();
  key_.push_back(List);
  key_.push_back(static_cast<std::int64_t>(items.size()));
  for (const c10::IValue& item : items) {
    if (item.isTensor() && item.toTensor().defined() &&
        item.toTensor().device().type() == c10::DeviceType::CPU)
      return "an argument is a tensor of the host";
    if (const char* reason = add(item, /*written=*/false, /*fixed_number=*/true))
      return reason;
  }
  return nullptr;
}

const char* Signature::add(const c10::IValue& value, bool written, bool fixed_number) {
  if (value.isTensor()) {
    if (value.toTensor().defined())
      return add_tensor(value.toTensor(), written);
    key_.push_back(None);
  } else if (value.isNone()) {
    key_.push_back(None);
  } else if (value.isBool()) {
    key_.push_back(Flag | static_cast<std::int64_t>(value.toBool()) << 8);
  } else if (value.isInt()) {
    if (fixed_number) {
      key_.push_back(Whole);
      key_.push_back(value.toInt());
    } else {
      key_.push_back(WholeArgument);
      arguments_.push_back(
          {ProgramArgument::Kind::Whole, false, nullptr, static_cast<std::uint64_t>(value.toInt())});
    }
  } else if (value.isDouble()) {
    if (fixed_number) {
      add_bits(Real, value.toDouble());
    } else {
      key_.push_back(RealArgument);
      arguments_.push_back(
          {ProgramArgument::Kind::Real, false, nullptr, std::bit_cast<std::uint64_t>(value.toDouble())});
    }
  } else if (value.isComplexDouble()) {
    add_bits(Complex, value.toComplexDouble().real());
    add_bits(Complex, value.toComplexDouble().imag());
  } else if (value.isString()) {
    const std::string& text = value.toStringRef();
    key_.push_back(Text | static_cast<std::int64_t>(text.size()) << 8);
    key_.append(text.begin(), text.end());
  } else if (value.isDevice()) {
    const c10::Device device = value.toDevice();
    if (device.type() != c10::DeviceType::PrivateUse1)
      return "an argument names a device of another kind";
    key_.push_back(Host);
  } else if (value.isList()) {
    return add_list(value);
  } else {
    return "an argument is of a kind that programs don't hold";
  }
  return nullptr;
}

// Operands of a program have storages of their own: what a kernel would notice of shared memory is lost.
const char* Signature::check_aliases() const {
  for (const ProgramArgument& argument : arguments_) {
    if (!argument.written)
      continue;
    for (const ProgramArgument& other : arguments_)
      if (&other != &argument && other.tensor != nullptr &&
          other.tensor->unsafeGetTensorImpl()->unsafe_storage().is_alias_of(
              argument.tensor->unsafeGetTensorImpl()->unsafe_storage()))
        return "an argument that is written shares its storage with another one";
  }
  return nullptr;
}

const char* Signature::read(const c10::IValue* values, const std::vector<Role>& roles) {
  key_.clear();
  arguments_.clear();
  device_ = -1;
  // Type promotion asks for the default dtype.
  key_.push_back(static_cast<std::int64_t>(c10::get_default_dtype_as_scalartype()));
  bool writes = false;
  for (std::size_t i = 0; i < roles.size(); ++i) {
    writes = writes || roles[i] == Role::Written;
    if (const char* reason = add(values[i], roles[i] == Role::Written, roles[i] != Role::Number))
      return reason;
  }
  if (device_ == -1)
    return "no argument is a tensor of the device";
  key_.push_back(device_);
  return writes ? check_aliases() : nullptr;
}

} // namespace spyre::eager
