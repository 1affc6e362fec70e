#include "programs/program.h"

#include "bridge/host_kernel.h"
#include "card/error.h"

#include <ATen/EmptyTensor.h>
#include <ATen/ScalarOps.h>
#include <ATen/core/List.h>
#include <algorithm>
#include <c10/core/ScalarType.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <cstdio>
#include <cstring>

namespace spyre::programs {
namespace {

const c10::Device kHost(c10::DeviceType::CPU);

bool varies(const Value& value) {
  if (value.tag == Tag::List) {
    for (const Value& element : value.values)
      if (varies(element))
        return true;
    return false;
  }
  return value.tag == Tag::FloatSlot || (value.tag == Tag::Int && value.number.slot);
}

std::string hex(std::uint64_t value) {
  char text[19];
  std::snprintf(text, sizeof(text), "0x%llx", static_cast<unsigned long long>(value));
  return text;
}

bool fixed(const OperandText& operand) {
  bool result = !operand.offset.slot;
  for (const Number& number : operand.sizes)
    result = result && !number.slot;
  for (const Number& number : operand.strides)
    result = result && !number.slot;
  return result;
}

} // namespace

Program::Program(std::span<const std::byte> text, const std::vector<bool>& writable,
                 std::shared_ptr<const Library> library, card::Device& device, const card::Arena& arena)
    : device_(device), arena_(arena), text_(decode(text)) {
  if (text_.slots != writable.size())
    throw card::InvalidArgument("the text has " + std::to_string(text_.slots) +
                                " slots, the manifest describes " + std::to_string(writable.size()));
  for (const std::size_t slot : text_.storages)
    storages_.push_back({slot, c10::make_intrusive<c10::StorageImpl>(
                                   c10::StorageImpl::use_byte_size_t(), 0, c10::DataPtr(nullptr, kHost),
                                   /*allocator=*/nullptr, /*resizable=*/false)});
  for (std::size_t i = 0; i < text_.operands.size(); ++i)
    make_operand(i);
  for (const InstructionText& instruction : text_.instructions) {
    Instruction& made = instructions_.emplace_back();
    made.results = instruction.results;
    if (instruction.kind == Kind::Operator)
      make_operator(made, instruction, writable);
    else
      make_kernel(made, instruction, library.get());
  }
}

void Program::make_operand(std::size_t index) {
  const OperandText& text = text_.operands[index];
  if (text.dtype < 0 || text.dtype >= static_cast<std::int64_t>(c10::ScalarType::NumOptions) ||
      c10::isQIntType(static_cast<c10::ScalarType>(text.dtype)))
    throw card::InvalidArgument("operand " + std::to_string(index) + " has dtype number " +
                                std::to_string(text.dtype) + ", which programs don't know");
  Storage& storage = storages_[text.storage];
  operands_.push_back({text.storage,
                       at::detail::make_tensor<c10::TensorImpl>(
                           c10::Storage(storage.impl), c10::DispatchKeySet(c10::DispatchKey::CPU),
                           c10::scalarTypeToTypeMeta(static_cast<c10::ScalarType>(text.dtype))),
                       fixed(text)});
  if (operands_.back().fixed)
    shape(index, {});
}

void Program::shape(std::size_t index, std::span<const std::int64_t> slots) {
  const OperandText& text = text_.operands[index];
  Operand& operand = operands_[index];
  c10::SmallVector<std::int64_t, 6> sizes;
  c10::SmallVector<std::int64_t, 6> strides;
  for (const Number& number : text.sizes)
    sizes.push_back(number.at(slots));
  for (const Number& number : text.strides)
    strides.push_back(number.at(slots));
  const std::int64_t offset = text.offset.at(slots);
  for (const std::int64_t value : sizes)
    if (value < 0)
      throw card::InvalidArgument("operand " + std::to_string(index) + " has size " + std::to_string(value));
  for (const std::int64_t value : strides)
    if (value < 0)
      throw card::InvalidArgument("operand " + std::to_string(index) + " has stride " +
                                  std::to_string(value));
  if (offset < 0)
    throw card::InvalidArgument("operand " + std::to_string(index) + " has offset " + std::to_string(offset));
  c10::TensorImpl* impl = operand.tensor.unsafeGetTensorImpl();
  std::uint64_t bytes = 0;
  try {
    impl->set_sizes_and_strides(sizes, strides, offset);
    if (impl->numel() != 0)
      bytes = at::detail::computeStorageNbytes(sizes, strides, impl->itemsize(),
                                               static_cast<std::size_t>(offset));
  } catch (const c10::Error& error) {
    throw card::InvalidArgument("operand " + std::to_string(index) + ": " + error.what_without_backtrace());
  }
  Storage& storage = storages_[operand.storage];
  storage.bytes = std::max(storage.bytes, bytes);
}

void Program::check_writable(std::size_t operand, const std::vector<bool>& writable,
                             const std::string& name) const {
  if (!writable[storages_[operands_[operand].storage].slot])
    throw card::InvalidArgument("operator " + name + " writes operand " + std::to_string(operand) +
                                ", which is an input or a constant");
}

void Program::check_writable(const Value& value, const std::vector<bool>& writable,
                             const std::string& name) const {
  if (value.tag == Tag::Operand)
    check_writable(static_cast<std::size_t>(value.number.value), writable, name);
  for (const Value& element : value.values)
    check_writable(element, writable, name);
}

void Program::make_operator(Instruction& made, const InstructionText& text,
                            const std::vector<bool>& writable) {
  const auto op = c10::Dispatcher::singleton().findSchema({text.name, text.overload});
  const std::string name = text.overload.empty() ? text.name : text.name + "." + text.overload;
  if (!op)
    throw card::InvalidArgument("there is no operator " + name + " in this PyTorch");
  if (!op->hasComputedKernelForDispatchKey(c10::DispatchKey::CPU))
    throw card::InvalidArgument("operator " + name + " has no kernel that the card could run");
  const auto& arguments = op->schema().arguments();
  if (text.arguments.size() != arguments.size())
    throw card::InvalidArgument("operator " + name + " takes " + std::to_string(arguments.size()) +
                                " arguments, the program has " + std::to_string(text.arguments.size()));
  if (text.results.size() != op->schema().returns().size())
    throw card::InvalidArgument("operator " + name + " returns " +
                                std::to_string(op->schema().returns().size()) +
                                " values, the program takes " + std::to_string(text.results.size()));
  made.op = *op;
  for (const std::int64_t result : text.results)
    if (result >= 0)
      check_writable(static_cast<std::size_t>(result), writable, name);
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    const Value& value = text.arguments[i];
    if (const c10::AliasInfo* alias = arguments[i].alias_info(); alias != nullptr && alias->isWrite())
      check_writable(value, writable, name);
    if (value.tag == Tag::Default) {
      if (!arguments[i].default_value())
        throw card::InvalidArgument("operator " + name + ": argument '" + arguments[i].name() +
                                    "' has no default");
      made.arguments.push_back(*arguments[i].default_value());
    } else if (varies(value)) {
      made.varying.push_back({i, &value});
      made.arguments.emplace_back();
    } else {
      made.arguments.push_back(resolve(value, arguments[i].type(), {}));
      const c10::TypePtr found = made.arguments.back().type<c10::Type>();
      // A Scalar may be a truth value, which TorchScript's types don't say.
      const bool flag =
          made.arguments.back().isBool() && c10::NumberType::get()->isSubtypeOf(*arguments[i].type());
      if (!flag && !found->isSubtypeOf(*arguments[i].type()))
        throw card::InvalidArgument("operator " + name + ": argument '" + arguments[i].name() + "' takes " +
                                    arguments[i].type()->str() + ", not " + found->str());
    }
  }
}

void Program::make_kernel(Instruction& made, const InstructionText& text, const Library* library) {
  if (library == nullptr)
    throw card::InvalidArgument("the program calls kernel '" + text.name + "', but has no kernels");
  made.kernel = library->find(text.name);
  for (const Value& value : text.arguments) {
    if (value.tag == Tag::Operand)
      made.pointers.push_back(static_cast<std::size_t>(value.number.value));
    else if (value.tag == Tag::Int)
      made.numbers.push_back(value.number);
    else
      throw card::InvalidArgument("kernel '" + text.name + "' takes operands and whole numbers only");
  }
}

c10::IValue Program::plain(const Value& value, const c10::TypePtr& type,
                           std::span<const std::int64_t> slots) const {
  switch (value.tag) {
  case Tag::None:
  case Tag::Default:
    return {};
  case Tag::Bool:
    return value.number.value != 0;
  case Tag::Int:
    return value.number.at(slots);
  case Tag::Float:
    return value.real;
  case Tag::FloatSlot: {
    double real = 0;
    const std::int64_t bits = value.number.at(slots);
    std::memcpy(&real, &bits, sizeof(real));
    return real;
  }
  case Tag::Complex:
    return c10::complex<double>(value.real, value.imaginary);
  case Tag::String:
    return text_.strings[static_cast<std::size_t>(value.number.value)];
  case Tag::Operand:
    return operands_[static_cast<std::size_t>(value.number.value)].tensor;
  case Tag::Device:
    return kHost;
  case Tag::List:
    break;
  }
  c10::TypePtr inner = type;
  if (const auto optional = inner->cast<c10::OptionalType>())
    inner = optional->getElementType();
  const auto list = inner->cast<c10::ListType>();
  if (list == nullptr)
    throw card::InvalidArgument("a list stands where the operator takes " + type->str());
  const c10::TypePtr element = list->getElementType()->kind() == c10::TypeKind::SymIntType
                                   ? c10::IntType::get()
                                   : list->getElementType();
  c10::impl::GenericList result(element);
  result.reserve(value.values.size());
  for (const Value& item : value.values)
    result.push_back(resolve(item, element, slots));
  return result;
}

c10::IValue Program::resolve(const Value& value, const c10::TypePtr& type,
                             std::span<const std::int64_t> slots) const {
  c10::IValue result = plain(value, type, slots);
  if (!result.isScalar())
    return result;
  c10::TypePtr taken = type;
  if (const auto optional = taken->cast<c10::OptionalType>())
    taken = optional->getElementType();
  if (taken->kind() != c10::TypeKind::TensorType)
    return result;
  // As Python's numbers are when they meet a tensor: their dtype gives way to the tensor's.
  at::Tensor number = c10::scalar_to_tensor(result.toScalar(), kHost);
  number.unsafeGetTensorImpl()->set_wrapped_number(true);
  return number;
}

void Program::place(std::span<const std::int64_t> slots) {
  bool moving = false;
  for (const Operand& operand : operands_)
    moving = moving || !operand.fixed;
  if (moving) {
    for (Storage& storage : storages_)
      storage.bytes = 0;
    for (std::size_t i = 0; i < operands_.size(); ++i)
      shape(i, slots);
  }
  for (Storage& storage : storages_) {
    std::byte* host = nullptr;
    if (storage.bytes != 0) {
      const auto address = static_cast<std::uint64_t>(slots[storage.slot]);
      const auto* token = reinterpret_cast<const std::byte*>(address); // NOLINT(performance-no-int-to-ptr)
      if (!arena_.holds_token(token))
        throw card::MemoryFault("the program reads operand address " + hex(address) + " from slot " +
                                std::to_string(storage.slot) + ", which is not memory of the card" +
                                (address >> 16 == kPlaceholder >> 16 ? ": its patch has not landed" : ""));
      host = device_.access({arena_.position(token), storage.bytes});
    }
    storage.impl->set_data_ptr_noswap(c10::DataPtr(host, kHost));
    storage.impl->set_nbytes(storage.bytes);
  }
}

void Program::execute(const Instruction& instruction, std::span<const std::int64_t> slots) {
  if (instruction.kernel != nullptr) {
    c10::SmallVector<void*, 16> pointers;
    c10::SmallVector<std::int64_t, 8> numbers;
    for (const std::size_t operand : instruction.pointers)
      pointers.push_back(operands_[operand].tensor.mutable_data_ptr());
    for (const Number& number : instruction.numbers)
      numbers.push_back(number.at(slots));
    instruction.kernel(pointers.data(), numbers.data());
    return;
  }
  stack_.assign(instruction.arguments.begin(), instruction.arguments.end());
  const auto& schema = instruction.op->schema().arguments();
  for (const Varying& varying : instruction.varying)
    stack_[varying.argument] = resolve(*varying.value, schema[varying.argument].type(), slots);
  instruction.op->redispatchBoxed(c10::DispatchKeySet(c10::DispatchKey::CPU), &stack_);
  for (std::size_t i = 0; i < instruction.results.size(); ++i) {
    if (instruction.results[i] < 0)
      continue;
    const at::Tensor& target = operands_[static_cast<std::size_t>(instruction.results[i])].tensor;
    const at::Tensor made = stack_[i].toTensor();
    if (made.sizes() != target.sizes() || made.scalar_type() != target.scalar_type())
      throw card::InvalidArgument("operator " + toString(instruction.op->operator_name()) +
                                  " made a result that the program did not expect: " + made.toString() + " " +
                                  c10::str(made.sizes()) + " instead of " + c10::str(target.sizes()));
    target.copy_(made);
  }
  stack_.clear();
}

std::optional<std::size_t> Program::restore_moved(std::span<const std::int64_t> slots) {
  std::optional<std::size_t> moved;
  for (std::size_t i = 0; i < operands_.size(); ++i) {
    c10::TensorImpl* impl = operands_[i].tensor.unsafeGetTensorImpl();
    Storage& storage = storages_[operands_[i].storage];
    const std::vector<Number>& sizes = text_.operands[i].sizes;
    bool same = impl->unsafe_storage().unsafeGetStorageImpl() == storage.impl.get() &&
                impl->dim() == static_cast<std::int64_t>(sizes.size());
    for (std::size_t d = 0; same && d < sizes.size(); ++d)
      same = impl->sizes()[d] == sizes[d].at(slots);
    if (same)
      continue;
    moved = i;
    impl->set_storage_keep_dtype(c10::Storage(storage.impl));
    shape(i, slots);
  }
  return moved;
}

void Program::run(std::span<const std::byte> corrections) {
  if (corrections.size() < text_.slots * sizeof(std::int64_t))
    throw card::InvalidArgument("the correction region holds fewer words than the program has slots");
  const std::span slots(reinterpret_cast<const std::int64_t*>(corrections.data()), text_.slots);
  const std::lock_guard lock(running_);
  place(slots);
  const c10::impl::ExcludeDispatchKeyGuard below(bridge::kAboveDevice);
  try {
    for (const Instruction& instruction : instructions_)
      execute(instruction, slots);
  } catch (...) {
    restore_moved(slots);
    stack_.clear();
    throw;
  }
  if (const auto moved = restore_moved(slots))
    throw card::InvalidArgument("an operator gave operand " + std::to_string(*moved) +
                                " other sizes or memory than the program has for it");
}

} // namespace spyre::programs
