#include "bridge/host_kernel.h"

#include "bridge/generator.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/core/List.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <c10/util/SmallVector.h>
#include <mutex>
#include <optional>
#include <string_view>

namespace spyre::bridge {
namespace {

constexpr auto kSpyre = c10::DeviceType::PrivateUse1;

bool takes_host_indices(std::string_view name) {
  return name == "aten::index" || name == "aten::index_put_" || name == "aten::_index_put_impl_" ||
         name == "aten::_unsafe_index" || name == "aten::index_put";
}

// IValue::isOptionalTensorList compares types by identity and misses lists that TorchScript made.
bool is_optional_tensor_list(const c10::IValue& value) {
  if (!value.isList())
    return false;
  const auto optional = value.toList().elementType()->cast<c10::OptionalType>();
  return optional != nullptr && optional->getElementType()->kind() == c10::TypeKind::TensorType;
}

// Lets kernels that draw from the default CPU generator draw from a device's generator instead.
class DrawFrom {
public:
  explicit DrawFrom(const at::Generator& device)
      : lock_(mutex()),
        device_(static_cast<const SpyreGenerator*>(device.unsafeGetGeneratorImpl())->engine()),
        default_(at::detail::getDefaultCPUGenerator()), saved_(default_.clone()) {
    default_.unsafeGetGeneratorImpl()->set_state(*device_.unsafeGetGeneratorImpl()->get_state());
  }
  ~DrawFrom() {
    device_.unsafeGetGeneratorImpl()->set_state(*default_.unsafeGetGeneratorImpl()->get_state());
    default_.unsafeGetGeneratorImpl()->set_state(*saved_.unsafeGetGeneratorImpl()->get_state());
  }
  DrawFrom(const DrawFrom&) = delete;
  DrawFrom& operator=(const DrawFrom&) = delete;

private:
  static std::mutex& mutex() {
    static std::mutex instance;
    return instance;
  }
  const std::lock_guard<std::mutex> lock_;
  at::Generator device_;
  at::Generator default_;
  at::Generator saved_;
};

// The devices of a call's arguments.
class Placement {
public:
  explicit Placement(const HostKernelPlan& plan) : plan_(plan) {}

  void see(const at::Tensor& tensor, std::size_t argument, bool element) {
    if (!tensor.defined())
      return;
    const c10::Device device = tensor.device();
    if (device.type() == kSpyre) {
      if (index_ == -1)
        index_ = device.index();
      else if (C10_UNLIKELY(index_ != device.index()))
        mixed(device);
      return;
    }
    const bool indices = element && plan_.host_tensors == HostKernelPlan::HostTensors::Indices;
    if (tensor.dim() != 0 || plan_.written[argument]) {
      if (!indices && !foreign_)
        foreign_ = device;
    }
  }
  void see_device(c10::Device device) {
    if (device.type() == kSpyre)
      index_ = checked_index(device.index());
  }

  // The device of the call. Throws when the arguments are on several.
  c10::DeviceIndex decide() const {
    if (foreign_ && index_ != -1)
      mixed(*foreign_);
    return index_ == -1 ? current_device() : index_;
  }

private:
  [[noreturn]] void mixed(c10::Device other) const {
    TORCH_CHECK(false, "Expected all tensors to be on the same device, but found at least two devices, ",
                c10::Device(kSpyre, index_), " and ", other, "!");
  }

  const HostKernelPlan& plan_;
  c10::DeviceIndex index_ = -1;
  std::optional<c10::Device> foreign_;
};

bool on_device(const at::Tensor& tensor) {
  return tensor.defined() && tensor.device().type() == kSpyre;
}

// Arguments of one call: the device tensors, and the host views that take their place on the stack.
class Arguments {
public:
  Arguments(const HostKernelPlan& plan, torch::jit::Stack& stack, std::size_t first, c10::DeviceIndex device)
      : plan_(plan), views_(device) {
    for (std::size_t i = 0; i < plan.written.size(); ++i)
      replace(stack[first + i], static_cast<int>(i));
  }

  // Carries what the kernel did to written arguments over to the device tensors.
  void settle() {
    for (const Single& single : singles_)
      if (plan_.written[static_cast<std::size_t>(single.argument)])
        views_.settle(single.host.toTensor(), single.device.toTensor());
    for (const Element& element : elements_)
      if (plan_.written[static_cast<std::size_t>(element.argument)])
        views_.settle(element.host, element.device);
  }

  // Turns one value that the kernel returned into a device value.
  c10::IValue result(c10::IValue value, int source) {
    if (source >= 0)
      if (const c10::IValue* original = original_of(source))
        return *original;
    if (value.isTensor())
      return device_tensor(std::move(value).toTensor());
    if (value.isTensorList()) {
      c10::List<at::Tensor> list = std::move(value).toTensorList();
      c10::List<at::Tensor> moved;
      moved.reserve(list.size());
      for (std::size_t i = 0; i < list.size(); ++i)
        moved.push_back(device_tensor(list.extract(i)));
      return moved;
    }
    return value;
  }

private:
  struct Single {
    int argument;
    c10::IValue device;
    c10::IValue host;
  };
  struct Element {
    int argument;
    at::Tensor device;
    at::Tensor host;
  };

  void replace(c10::IValue& value, int argument) {
    if (value.isTensor()) {
      if (!on_device(value.toTensor()))
        return;
      c10::IValue host = views_.view(value.toTensor());
      singles_.push_back({argument, std::move(value), host});
      value = std::move(host);
    } else if (value.isTensorList()) {
      const c10::List<at::Tensor> list = value.toTensorList();
      c10::List<at::Tensor> hosts;
      hosts.reserve(list.size());
      for (const at::Tensor& tensor : list)
        hosts.push_back(element(tensor, argument));
      lists_.emplace_back(argument, std::move(value));
      value = std::move(hosts);
    } else if (is_optional_tensor_list(value)) {
      c10::List<std::optional<at::Tensor>> hosts;
      hosts.reserve(value.toListRef().size());
      for (const c10::IValue& item : value.toListRef())
        hosts.push_back(item.isTensor() ? std::optional(element(item.toTensor(), argument)) : std::nullopt);
      value = std::move(hosts);
    }
  }

  at::Tensor element(const at::Tensor& tensor, int argument) {
    if (!on_device(tensor))
      return tensor;
    at::Tensor host = views_.view(tensor);
    elements_.push_back({argument, tensor, host});
    return host;
  }

  const c10::IValue* original_of(int argument) const {
    for (const Single& single : singles_)
      if (single.argument == argument)
        return &single.device;
    for (const auto& [index, list] : lists_)
      if (index == argument)
        return &list;
    return nullptr;
  }

  at::Tensor device_tensor(at::Tensor tensor) {
    for (const Single& single : singles_)
      if (single.host.toTensor().is_same(tensor))
        return single.device.toTensor();
    for (const Element& element : elements_)
      if (element.host.is_same(tensor))
        return element.device;
    return views_.result(std::move(tensor));
  }

  const HostKernelPlan& plan_;
  HostViews views_;
  c10::SmallVector<Single, 4> singles_;
  c10::SmallVector<Element, 4> elements_;
  c10::SmallVector<std::pair<int, c10::IValue>, 1> lists_;
};

c10::DeviceIndex place(const HostKernelPlan& plan, const torch::jit::Stack& stack, std::size_t first) {
  Placement placement(plan);
  for (std::size_t i = 0; i < plan.written.size(); ++i) {
    const c10::IValue& value = stack[first + i];
    if (value.isTensor()) {
      placement.see(value.toTensor(), i, /*element=*/false);
    } else if (value.isTensorList()) {
      for (const at::Tensor& tensor : value.toTensorList())
        placement.see(tensor, i, /*element=*/true);
    } else if (is_optional_tensor_list(value)) {
      for (const c10::IValue& item : value.toListRef())
        if (item.isTensor())
          placement.see(item.toTensor(), i, /*element=*/true);
    } else if (value.isDevice()) {
      placement.see_device(value.toDevice());
    }
  }
  return placement.decide();
}

// Puts the CPU engine of a device's generator in the place of the generator argument.
void use_engine(c10::IValue& value, c10::DeviceIndex device) {
  const at::Generator generator = value.isNone() ? default_generator(device) : value.toGenerator();
  TORCH_CHECK(generator.device().type() == kSpyre, "Expected a 'spyre' device type for generator but found '",
              generator.device().type(), "'");
  value = static_cast<SpyreGenerator*>(generator.unsafeGetGeneratorImpl())->engine();
}

} // namespace

bool draws_random(const c10::OperatorHandle& op) {
  // Has the tag of all attentions, but its kernel refuses dropout.
  static constexpr std::string_view kNoDropout = "aten::_scaled_dot_product_flash_attention_for_cpu";
  return op.hasTag(at::Tag::nondeterministic_seeded) && op.schema().name() != kNoDropout;
}

HostKernelPlan::HostKernelPlan(const c10::OperatorHandle& op) {
  const c10::FunctionSchema& schema = op.schema();
  const auto& arguments = schema.arguments();
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    const c10::AliasInfo* alias = arguments[i].alias_info();
    written.push_back(alias != nullptr && alias->isWrite());
    const std::string type = arguments[i].real_type()->str();
    if (type == "Generator?" || type == "Generator")
      generator = static_cast<int>(i);
    else if (type == "Device?" || type == "Device")
      device = static_cast<int>(i);
  }
  for (const c10::Argument& result : schema.returns()) {
    int source = -1;
    if (const c10::AliasInfo* alias = result.alias_info(); alias != nullptr && alias->isWrite())
      for (std::size_t i = 0; i < arguments.size(); ++i)
        if (written[i] && *arguments[i].alias_info() == *alias)
          source = static_cast<int>(i);
    returned.push_back(source);
  }
  draws = generator == -1 && draws_random(op);
  if (takes_host_indices(schema.name()))
    host_tensors = HostTensors::Indices;
}

void run_host_kernel(const HostKernelPlan& plan, const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  const std::size_t first = stack->size() - plan.written.size();
  const c10::DeviceIndex device = place(plan, *stack, first);
  if (plan.generator >= 0)
    use_engine((*stack)[first + static_cast<std::size_t>(plan.generator)], device);
  if (plan.device >= 0) {
    c10::IValue& value = (*stack)[first + static_cast<std::size_t>(plan.device)];
    if (value.isDevice() && value.toDevice().type() == kSpyre)
      value = c10::Device(c10::DeviceType::CPU);
  }
  compute_on(device, [&] {
    const HostKernelScope born_on_device(device);
    const c10::impl::ExcludeDispatchKeyGuard below(kAboveDevice);
    Arguments arguments(plan, *stack, first, device);
    try {
      std::optional<DrawFrom> draw;
      if (plan.draws)
        draw.emplace(default_generator(device));
      op.redispatchBoxed(c10::DispatchKeySet(c10::DispatchKey::CPU), stack);
    } catch (...) {
      // A kernel may fail after it has grown an output: the device tensors must not keep the old memory.
      arguments.settle();
      throw;
    }
    arguments.settle();
    const std::size_t results = stack->size() - plan.returned.size();
    for (std::size_t i = 0; i < plan.returned.size(); ++i) {
      c10::IValue& value = (*stack)[results + i];
      value = arguments.result(std::move(value), plan.returned[i]);
    }
  });
}

} // namespace spyre::bridge
