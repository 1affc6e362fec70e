#include "eager/kernel.h"

#include "bridge/allocator.h"
#include "eager/compiler.h"

#include <ATen/EmptyTensor.h>
#include <algorithm>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <map>
#include <mutex>
#include <set>
#include <utility>

namespace spyre::eager {
namespace {

constexpr c10::DispatchKeySet kDevice(c10::DispatchKey::PrivateUse1);

std::atomic<Compiler> installed{nullptr};

struct Kernels {
  std::mutex mutex;
  std::set<const EagerKernel*> all;
};

Kernels& kernels() {
  static auto* instance = new Kernels;
  return *instance;
}

bool is_tensor(const c10::TypePtr& type) {
  return type->kind() == c10::TypeKind::TensorType;
}

bool is_number(c10::TypePtr type) {
  if (const auto optional = type->cast<c10::OptionalType>())
    type = optional->getElementType();
  return type->kind() == c10::TypeKind::NumberType || type->kind() == c10::TypeKind::FloatType;
}

// Names of operators whose results have sizes that depend on data; in-place and out forms don't carry the
// tag.
const std::set<std::string>& data_dependent() {
  static const auto* names = [] {
    auto* found = new std::set<std::string>;
    c10::Dispatcher& dispatcher = c10::Dispatcher::singleton();
    for (const c10::OperatorName& name : dispatcher.getAllOpNames())
      if (const auto op = dispatcher.findSchema(name);
          op && (op->hasTag(at::Tag::dynamic_output_shape) || op->hasTag(at::Tag::data_dependent_output)))
        found->insert(name.name);
    return found;
  }();
  return *names;
}

// Why an operator can't be a program, whatever it is called with; null if it can.
const char* reason_against(const c10::OperatorHandle& op, const bridge::HostKernelPlan& host) {
  const c10::FunctionSchema& schema = op.schema();
  if (op.operator_name().getNamespace() != "aten")
    return "it is an operator of another library";
  if (host.generator >= 0 || bridge::draws_random(op))
    return "it draws random numbers";
  if (data_dependent().count(schema.name()) != 0)
    return "the sizes of its results depend on data";
  if (schema.returns().empty())
    return "it returns nothing";
  for (std::size_t i = 0; i < schema.returns().size(); ++i) {
    const c10::Argument& returned = schema.returns()[i];
    if (!is_tensor(returned.type()))
      return "it returns something else than tensors";
    if (returned.alias_info() != nullptr && host.returned[i] < 0)
      return "it returns a view";
  }
  for (std::size_t i = 0; i < schema.arguments().size(); ++i)
    if (host.written[i] && !is_tensor(schema.arguments()[i].type()))
      return "it writes a list of tensors";
  return nullptr;
}

at::Tensor allocate(const Result& result, c10::DeviceIndex device) {
  c10::Storage storage(c10::make_intrusive<c10::StorageImpl>(
      c10::StorageImpl::use_byte_size_t(), result.bytes,
      bridge::device_allocator().allocate_on(device, result.bytes), &bridge::device_allocator(),
      /*resizable=*/true));
  at::Tensor tensor = at::detail::make_tensor<c10::TensorImpl>(std::move(storage), kDevice,
                                                               c10::scalarTypeToTypeMeta(result.dtype));
  tensor.unsafeGetTensorImpl()->set_sizes_and_strides(result.sizes, result.strides);
  return tensor;
}

card::Span span_of(const at::Tensor& tensor, std::uint64_t address) {
  return {bridge::Runtime::get().arena().position(reinterpret_cast<const void*>(address)), // NOLINT
          at::detail::computeStorageNbytes(tensor.sizes(), tensor.strides(), tensor.itemsize())};
}

// True when a call has left every argument where it was, with the sizes it had.
bool same_place(const Signature& before, const Signature& after) {
  return std::ranges::equal(before.key(), after.key()) &&
         std::ranges::equal(before.arguments(), after.arguments(), {}, &ProgramArgument::word,
                            &ProgramArgument::word);
}

// Texts live as long as the process: whoever counts reasons keeps pointers.
const char* interned(std::string text) {
  static std::mutex mutex;
  static auto* texts = new std::set<std::string>;
  const std::lock_guard lock(mutex);
  return texts->insert(std::move(text)).first->c_str();
}

// A launch of which the simulated timeline shows every step; returns what the program threw.
std::exception_ptr launch_in_steps(const programs::JobPlan& plan, const Signature& signature,
                                   std::span<const at::Tensor> made) {
  std::vector<programs::Given> given;
  for (const ProgramArgument& argument : signature.arguments())
    switch (argument.kind) {
    case ProgramArgument::Kind::Tensor:
      given.emplace_back(*argument.tensor);
      break;
    case ProgramArgument::Kind::Real:
      given.emplace_back(std::bit_cast<double>(argument.word));
      break;
    case ProgramArgument::Kind::Whole:
      given.emplace_back(std::bit_cast<std::int64_t>(argument.word));
      break;
    }
  given.insert(given.end(), made.begin(), made.end());
  card::Queue& queue = bridge::current_queue(signature.device());
  queue.synchronize(); // an error from here on is this launch's
  plan.launch_below_autograd(given);
  return queue.drain();
}

// What a traced call returned, or why it can't be a program: a constant text.
std::variant<std::vector<Result>, const char*> results_of(const bridge::HostKernelPlan& host,
                                                          std::span<const c10::IValue> returned,
                                                          const Signature& signature) {
  std::vector<Result> results;
  std::set<const void*> known;
  for (const ProgramArgument& argument : signature.arguments())
    if (argument.tensor != nullptr)
      known.insert(argument.tensor->unsafeGetTensorImpl()->unsafe_storage().unsafeGetStorageImpl());
  for (std::size_t i = 0; i < returned.size(); ++i) {
    Result& result = results.emplace_back();
    if (host.returned[i] >= 0) {
      result.argument = host.returned[i];
      continue;
    }
    const at::Tensor& tensor = returned[i].toTensor();
    if (!tensor.defined())
      return "a result is undefined";
    const c10::TensorImpl& impl = *tensor.unsafeGetTensorImpl();
    if (impl.key_set() - bridge::kAboveDevice != kDevice || impl.storage_offset() != 0 ||
        impl.is_wrapped_number())
      return "a result is no plain new tensor";
    if (!known.insert(impl.unsafe_storage().unsafeGetStorageImpl()).second)
      return "a result shares its storage with an argument or another result";
    result.dtype = tensor.scalar_type();
    result.sizes = impl.sizes().vec();
    result.strides = impl.strides().vec();
    result.bytes = impl.unsafe_storage().nbytes();
  }
  return results;
}

} // namespace

void set_compiler(Compiler compiler) {
  installed = compiler;
}

Compiler compiler() {
  return installed;
}

EagerKernel::EagerKernel(const c10::OperatorHandle& op)
    : host_(op), name_(c10::toString(op.operator_name())), never_(reason_against(op, host_)) {
  const auto& arguments = op.schema().arguments();
  writes_ = std::find(host_.written.begin(), host_.written.end(), true) != host_.written.end();
  // Sizes of what an out form returns may follow from a number, and the caller's tensor has others then.
  const bool has_out = std::any_of(arguments.begin(), arguments.end(),
                                   [](const c10::Argument& argument) { return argument.is_out(); });
  for (std::size_t i = 0; i < arguments.size(); ++i)
    roles_.push_back(host_.written[i]                                  ? Signature::Role::Written
                     : !has_out && is_number(arguments[i].real_type()) ? Signature::Role::Number
                                                                       : Signature::Role::Read);
  const std::lock_guard lock(kernels().mutex);
  kernels().all.insert(this);
}

EagerKernel::~EagerKernel() {
  const std::lock_guard lock(kernels().mutex);
  kernels().all.erase(this);
}

void EagerKernel::operator()(const c10::OperatorHandle& op, c10::DispatchKeySet, torch::jit::Stack* stack) {
  if (never_ != nullptr || bridge::Settings::get().eager_programs == 0 || compiler() == nullptr)
    return run_outside(op, stack, never_ != nullptr ? never_ : "programs of eager operators are off");
  Signature signature;
  if (const char* reason = signature.read(stack->data() + stack->size() - roles_.size(), roles_))
    return run_outside(op, stack, reason);
  const std::shared_ptr<const Entry> entry = table_.find(signature.key());
  if (entry == nullptr)
    trace(op, stack, signature);
  else if (entry->plan == nullptr)
    run_outside(op, stack, entry->reason);
  else
    launch(*entry, signature, op, stack);
}

void EagerKernel::run_outside(const c10::OperatorHandle& op, torch::jit::Stack* stack, const char* reason) {
  count_outside(reason);
  bridge::run_host_kernel(host_, op, stack);
}

void EagerKernel::count_outside(const char* reason) {
  using bridge::Fallback;
  const Fallback fallback = bridge::Settings::get().fallback;
  TORCH_CHECK(fallback != Fallback::Error, name_, " can't run as a program: ", reason,
              ". SPYRE_FALLBACK=error refuses such calls");
  if (outside_.fetch_add(1, std::memory_order_relaxed) == 0 && fallback == Fallback::Warn)
    TORCH_WARN(name_, " runs outside of a program: ", reason);
  reason_.store(reason, std::memory_order_relaxed);
}

void EagerKernel::trace(const c10::OperatorHandle& op, torch::jit::Stack* stack, const Signature& signature) {
  const std::vector<c10::IValue> values(stack->end() - static_cast<std::ptrdiff_t>(roles_.size()),
                                        stack->end());
  bridge::run_host_kernel(host_, op, stack);
  auto entry = std::make_shared<Entry>();
  const std::span returned(stack->data() + stack->size() - host_.returned.size(), host_.returned.size());
  Signature after;
  if (after.read(values.data(), roles_) != nullptr || !same_place(signature, after)) {
    entry->reason = "it gives an argument other sizes or other memory";
  } else if (auto found = results_of(host_, returned, after);
             auto* reason = std::get_if<const char*>(&found)) {
    entry->reason = *reason;
  } else {
    entry->results = std::get<std::vector<Result>>(std::move(found));
    auto compiled = compiler()({op, values, roles_, after, entry->results});
    if (auto* plan = std::get_if<std::shared_ptr<const programs::JobPlan>>(&compiled)) {
      entry->plan = std::move(*plan);
      compiled_.fetch_add(1, std::memory_order_relaxed);
    } else if (std::holds_alternative<NotNow>(compiled)) {
      return;
    } else {
      entry->reason = interned(std::get<std::string>(std::move(compiled)));
    }
  }
  table_.put(signature.key(), std::move(entry));
}

void EagerKernel::launch(const Entry& entry, const Signature& signature, const c10::OperatorHandle& op,
                         torch::jit::Stack* stack) {
  c10::SmallVector<std::uint64_t, 12> words;
  card::Footprint touched;
  for (const ProgramArgument& argument : signature.arguments()) {
    words.push_back(argument.word);
    if (argument.word != 0 && argument.tensor != nullptr)
      (argument.written ? touched.writes : touched.reads).push_back(span_of(*argument.tensor, argument.word));
  }
  c10::SmallVector<at::Tensor, 2> made;
  for (const Result& result : entry.results) {
    if (result.argument >= 0)
      continue;
    const at::Tensor& tensor = made.emplace_back(allocate(result, signature.device()));
    words.push_back(reinterpret_cast<std::uintptr_t>(tensor.const_data_ptr()));
    if (words.back() != 0)
      touched.writes.push_back(span_of(tensor, words.back()));
  }
  const std::exception_ptr failure = bridge::translated([&] {
    return bridge::Settings::get().clock == card::ClockKind::Wall
               ? entry.plan->run(words, touched)
               : launch_in_steps(*entry.plan, signature, made);
  });
  if (failure != nullptr) {
    if (writes_)
      bridge::translated([&] { std::rethrow_exception(failure); });
    // Nothing was written that the caller knows: the host kernel raises the operator's own error, or returns
    // what the program has no memory for.
    made.clear();
    bridge::run_host_kernel(host_, op, stack);
    auto outside = std::make_shared<Entry>();
    outside->reason = "its results differ from those of the first call";
    count_outside(outside->reason);
    return table_.put(signature.key(), std::move(outside));
  }
  launches_.fetch_add(1, std::memory_order_relaxed);
  c10::SmallVector<c10::IValue, 2> returned;
  const std::size_t first = stack->size() - roles_.size();
  auto next = made.begin();
  for (const Result& result : entry.results)
    returned.push_back(result.argument >= 0 ? (*stack)[first + static_cast<std::size_t>(result.argument)]
                                            : c10::IValue(std::move(*next++)));
  stack->resize(first);
  stack->insert(stack->end(), std::make_move_iterator(returned.begin()),
                std::make_move_iterator(returned.end()));
}

std::vector<EagerKernel::Counts> EagerKernel::counts() {
  std::map<std::string, Counts> found;
  const std::lock_guard lock(kernels().mutex);
  for (const EagerKernel* kernel : kernels().all) {
    const char* reason = kernel->reason_;
    if (kernel->launches_ != 0 || kernel->outside_ != 0 || kernel->compiled_ != 0)
      found[kernel->name_] = {kernel->name_, kernel->compiled_, kernel->launches_, kernel->outside_,
                              reason == nullptr ? "" : reason};
  }
  std::vector<Counts> result;
  for (auto& [name, counts] : found)
    result.push_back(std::move(counts));
  return result;
}

} // namespace spyre::eager
