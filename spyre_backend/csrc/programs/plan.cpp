#include "programs/plan.h"

#include "bridge/allocator.h"
#include "bridge/host_view.h"
#include "bridge/runtime.h"
#include "card/error.h"
#include "card/match.h"

#include <ATen/EmptyTensor.h>
#include <ATen/MemoryOverlap.h>
#include <ATen/Parallel.h>
#include <algorithm>
#include <bit>
#include <c10/core/GradMode.h>
#include <c10/util/SmallVector.h>
#include <cstring>
#include <exception>
#include <tuple>
#include <utility>

namespace spyre::programs {
namespace {

// A launch that touches at least this many bytes is worth a thread switch: its caller goes on at once.
constexpr std::uint64_t kDetachedBytes = 1 << 20;

std::uint64_t non_negative(std::int64_t value, const char* what) {
  if (value < 0)
    throw card::InvalidArgument(std::string(what) + " is " + std::to_string(value));
  return static_cast<std::uint64_t>(value);
}

} // namespace

// What one launch knows; lives until its last operation has completed.
struct JobPlan::Launch {
  std::shared_ptr<const JobPlan> plan;
  std::vector<std::int64_t> symbols;
  std::vector<bool> bound;          // per symbol: it has its value
  std::vector<std::uint64_t> words; // per argument: the address of a tensor, the bits of a scalar
  std::vector<c10::Storage> storages;
  c10::DataPtr scratch;
  std::uint64_t scratch_bytes = 0;
  card::Footprint footprint;
  std::uint64_t touched = 0;  // bytes of all tensors
  std::exception_ptr failure; // of the host's computation
};

JobPlan::JobPlan(PlanDescription description, std::span<const std::byte> text,
                 std::span<const std::byte> constants, std::shared_ptr<const Library> library,
                 c10::DeviceIndex device)
    : description_(std::move(description)), device_(bridge::checked_index(device)),
      constants_at_(card::round_up(text.size(), card::kStickBytes)),
      image_bytes_(constants_at_ + card::round_up(constants.size(), card::kStickBytes)),
      region_bytes_(card::round_up(description_.slots.size() * sizeof(std::uint64_t), card::kStickBytes)),
      regions_(region_bytes_ == 0 ? 0 : bridge::Settings::get().correction_regions),
      region_mutexes_(std::make_unique<std::mutex[]>(regions_)) {
  bridge::Runtime& runtime = bridge::Runtime::get();
  card::Device& card = runtime.device(device_);
  std::vector<std::byte> image(image_bytes_ + regions_ * region_bytes_);
  std::copy(text.begin(), text.end(), image.begin());
  std::copy(constants.begin(), constants.end(), image.begin() + static_cast<std::ptrdiff_t>(constants_at_));
  for (std::size_t at = image_bytes_; at < image.size(); at += sizeof(std::uint64_t)) {
    const std::uint64_t word =
        kPlaceholder | ((at - image_bytes_) % region_bytes_ / sizeof(std::uint64_t) & 0xFFFF);
    std::memcpy(image.data() + at, &word, sizeof(word));
  }
  block_ = card.memory().allocate(image.size(), card::Use::Program);
  try {
    card::Queue& queue = runtime.upload_queue(device_);
    card::Operation upload{card::CopyToDevice{image.data(), {block_->position, image.size()}}};
    upload.label = description_.name + ": upload";
    queue.submit(std::move(upload));
    queue.synchronize();
    program_ = std::make_unique<Program>(
        std::span<const std::byte>(runtime.arena().backing(block_->position), text.size()), writable_slots(),
        std::move(library), card, runtime.arena());
  } catch (...) {
    card.memory().free(block_);
    throw;
  }
  if (regions_ != 0)
    staging_ = std::make_unique<card::StagingPool>(runtime.scheduler(),
                                                   bridge::Settings::get().staging_buffers, region_bytes_);
}

JobPlan::~JobPlan() {
  if (bridge::Runtime::started())
    bridge::Runtime::get().device(device_).memory().free(block_);
}

std::vector<bool> JobPlan::writable_slots() const {
  std::vector<bool> result;
  for (const Slot& slot : description_.slots) {
    const auto* tensor = slot.kind == Slot::Kind::Address
                             ? std::get_if<TensorArgument>(&description_.arguments[slot.argument])
                             : nullptr;
    result.push_back(slot.kind == Slot::Kind::Scratch || (tensor != nullptr && tensor->writes));
  }
  return result;
}

card::Span JobPlan::region(std::size_t index) const {
  return {block_->position + image_bytes_ + index * region_bytes_, region_bytes_};
}

std::pair<std::size_t, std::unique_lock<std::mutex>> JobPlan::take_region() const {
  const std::size_t first = next_region_.fetch_add(1, std::memory_order_relaxed) % regions_;
  for (std::size_t i = 0; i < regions_; ++i) {
    const std::size_t index = (first + i) % regions_;
    if (std::unique_lock lock(region_mutexes_[index], std::try_to_lock); lock)
      return {index, std::move(lock)};
  }
  return {first, std::unique_lock(region_mutexes_[first])};
}

void JobPlan::bind(std::size_t symbol, std::int64_t value, const std::string& where, Launch& launch) const {
  const Symbol& known = description_.symbols[symbol];
  TORCH_CHECK_VALUE(value >= known.minimum && value <= known.maximum, "launch of '", description_.name,
                    "': ", where, " is ", value, ", but the program takes ", known.name, " from ",
                    known.minimum, " to ", known.maximum);
  TORCH_CHECK_VALUE(value % known.multiple == 0, "launch of '", description_.name, "': ", where, " is ",
                    value, ", but the program takes multiples of ", known.multiple, " for ", known.name);
  launch.symbols[symbol] = value;
  launch.bound[symbol] = true;
}

void JobPlan::check_tensor(const TensorArgument& argument, std::size_t index, const at::Tensor& tensor,
                           Launch& launch) const {
  const auto where = [&] {
    return c10::str("launch of '", description_.name, "': argument ", index, " ('", argument.name, "')");
  };
  TORCH_CHECK_VALUE(tensor.defined(), where(), " is no tensor");
  const c10::Device device = tensor.device();
  TORCH_CHECK_VALUE(device.type() == c10::DeviceType::PrivateUse1 && device.index() == device_, where(),
                    " is on ", device,
                    ", but the program was prepared for spyre:", static_cast<int>(device_));
  TORCH_CHECK_VALUE(tensor.layout() == c10::kStrided && !tensor.is_conj() && !tensor.is_neg(), where(),
                    " is not a plain strided tensor: make it one with .contiguous() or .resolve_conj()");
  TORCH_CHECK_VALUE(tensor.scalar_type() == argument.dtype, where(), " has dtype ", tensor.scalar_type(),
                    ", but the program takes ", argument.dtype);
  const c10::IntArrayRef sizes = tensor.sizes();
  TORCH_CHECK_VALUE(sizes.size() == argument.shape.size(), where(), " has ", sizes.size(),
                    " dimensions, but the program takes ", argument.shape.size());
  for (std::size_t d = 0; d < sizes.size(); ++d) {
    const Expression& expected = argument.shape[d];
    if (const std::int64_t symbol = expected.as_symbol();
        symbol >= 0 && !launch.bound[static_cast<std::size_t>(symbol)]) {
      bind(static_cast<std::size_t>(symbol), sizes[d],
           c10::str("dimension ", d, " of argument ", index, " ('", argument.name, "')"), launch);
      continue;
    }
    const std::int64_t size = expected.evaluate(launch.symbols);
    TORCH_CHECK_VALUE(sizes[d] == size, where(), " has ", sizes[d], " elements in dimension ", d,
                      ", but the program takes ", size);
  }
  if (tensor.numel() != 0)
    for (std::size_t d = 0; d < sizes.size(); ++d) {
      const std::int64_t stride = argument.strides[d].evaluate(launch.symbols);
      TORCH_CHECK_VALUE(sizes[d] == 1 || tensor.stride(static_cast<std::int64_t>(d)) == stride, where(),
                        " has the layout ", tensor.strides(), ", but the program takes a stride of ", stride,
                        " in dimension ", d);
    }
  bridge::check_has_memory(*tensor.unsafeGetTensorImpl());
  const void* address = tensor.numel() == 0 ? nullptr : tensor.const_data_ptr();
  launch.words.push_back(reinterpret_cast<std::uintptr_t>(address));
  if (address == nullptr)
    return;
  const card::Span span{bridge::Runtime::get().arena().position(address),
                        at::detail::computeStorageNbytes(sizes, tensor.strides(), tensor.itemsize())};
  launch.touched += span.bytes;
  if (argument.reads)
    launch.footprint.reads.push_back(span);
  if (argument.writes)
    launch.footprint.writes.push_back(span);
  launch.storages.push_back(tensor.storage());
}

void JobPlan::check_overlap(const std::vector<Given>& given) const {
  for (std::size_t i = 0; i < given.size(); ++i) {
    const auto* argument = std::get_if<TensorArgument>(&description_.arguments[i]);
    if (argument == nullptr || !argument->writes)
      continue;
    const at::Tensor& written = std::get<at::Tensor>(given[i]);
    for (std::size_t other = 0; other < given.size(); ++other) {
      const auto* tensor = std::get_if<at::Tensor>(&given[other]);
      if (other == i || tensor == nullptr || !tensor->storage().is_alias_of(written.storage()))
        continue;
      const at::MemOverlapStatus status =
          at::get_overlap_status(written.unsafeGetTensorImpl(), tensor->unsafeGetTensorImpl());
      TORCH_CHECK_VALUE(status != at::MemOverlapStatus::Full && status != at::MemOverlapStatus::Partial,
                        "launch of '", description_.name, "': argument ", i, " ('", argument->name,
                        "') is written and shares memory with argument ", other,
                        ": clone one of them, or make the program with one argument of role inout");
    }
  }
}

void JobPlan::check(const std::vector<Given>& given, Launch& launch) const {
  TORCH_CHECK_TYPE(given.size() == description_.arguments.size(), "launch of '", description_.name,
                   "': ", given.size(), " arguments, but the program takes ", description_.arguments.size());
  launch.symbols.resize(description_.symbols.size());
  launch.bound.resize(description_.symbols.size());
  launch.words.reserve(given.size());
  // Integers bind their symbols before any shape is compared with them.
  for (std::size_t i = 0; i < given.size(); ++i)
    if (const auto* integer = std::get_if<IntegerArgument>(&description_.arguments[i])) {
      const auto* value = std::get_if<std::int64_t>(&given[i]);
      TORCH_CHECK_TYPE(value != nullptr, "launch of '", description_.name, "': argument ", i, " ('",
                       integer->name, "') must be a whole number");
      bind(integer->symbol, *value, c10::str("argument ", i, " ('", integer->name, "')"), launch);
    }
  for (std::size_t i = 0; i < given.size(); ++i)
    std::visit(card::Match{
                   [&](const TensorArgument& argument) {
                     const auto* tensor = std::get_if<at::Tensor>(&given[i]);
                     TORCH_CHECK_TYPE(tensor != nullptr, "launch of '", description_.name, "': argument ", i,
                                      " ('", argument.name, "') must be a tensor");
                     check_tensor(argument, i, *tensor, launch);
                   },
                   [&](const IntegerArgument&) { launch.words.push_back(0); },
                   [&](const ScalarArgument& argument) {
                     const auto* real = std::get_if<double>(&given[i]);
                     const auto* whole = std::get_if<std::int64_t>(&given[i]);
                     TORCH_CHECK_TYPE(whole != nullptr || (real != nullptr && !argument.whole), "launch of '",
                                      description_.name, "': argument ", i, " ('", argument.name,
                                      "') must be a ", argument.whole ? "whole " : "", "number");
                     if (argument.whole)
                       launch.words.push_back(std::bit_cast<std::uint64_t>(*whole));
                     else
                       launch.words.push_back(std::bit_cast<std::uint64_t>(
                           real != nullptr ? *real : static_cast<double>(*whole)));
                   },
               },
               description_.arguments[i]);
}

void JobPlan::compute_slots(const Launch& launch, std::uint64_t* words) const {
  for (std::size_t i = 0; i < description_.slots.size(); ++i) {
    const Slot& slot = description_.slots[i];
    switch (slot.kind) {
    case Slot::Kind::Address:
    case Slot::Kind::Scalar:
      words[i] = launch.words[slot.argument];
      break;
    case Slot::Kind::Scratch: {
      // The end is the card's to check: scratch memory is an allocation of its own.
      const std::uint64_t offset =
          non_negative(slot.value.evaluate(launch.symbols), "a place in scratch memory");
      if (offset > launch.scratch_bytes)
        throw card::InvalidArgument("a place in scratch memory is " + std::to_string(offset) + " of " +
                                    std::to_string(launch.scratch_bytes) + " bytes");
      words[i] = reinterpret_cast<std::uintptr_t>(launch.scratch.get()) + offset;
      break;
    }
    case Slot::Kind::Constant:
      words[i] = reinterpret_cast<std::uintptr_t>(bridge::Runtime::get().arena().token(
          block_->position + constants_at_ +
          static_cast<std::uint64_t>(slot.value.evaluate(launch.symbols))));
      break;
    case Slot::Kind::Size:
      words[i] = static_cast<std::uint64_t>(slot.value.evaluate(launch.symbols));
      break;
    }
  }
}

bool JobPlan::runs_directly() const {
  return description_.symbols.empty() && description_.scratch.is_literal() &&
         description_.scratch.evaluate({}) == 0 &&
         std::all_of(description_.slots.begin(), description_.slots.end(), [](const Slot& slot) {
           return slot.kind == Slot::Kind::Address || slot.kind == Slot::Kind::Scalar;
         });
}

std::exception_ptr JobPlan::run(std::span<const std::uint64_t> words, const card::Footprint& touched) const {
  std::exception_ptr failure;
  bridge::current_queue(device_).compute(touched, description_.name, [&] {
    c10::SmallVector<std::uint64_t, 16> slots(region_bytes_ / sizeof(std::uint64_t));
    for (std::size_t i = 0; i < description_.slots.size(); ++i)
      slots[i] = words[description_.slots[i].argument];
    bridge::Runtime& runtime = bridge::Runtime::get();
    const card::Span corrections = region(0);
    if (region_bytes_ != 0)
      runtime.device(device_).store(corrections, slots.data());
    try {
      program_->run({runtime.arena().backing(corrections.position), corrections.bytes});
    } catch (...) {
      failure = std::current_exception();
    }
  });
  return failure;
}

void JobPlan::launch(const std::vector<Given>& given) const {
  auto launch = std::make_shared<Launch>();
  check(given, *launch);
  check_overlap(given);
  tell_autograd(given);
  queue_launch(std::move(launch));
}

void JobPlan::launch_below_autograd(const std::vector<Given>& given) const {
  auto launch = std::make_shared<Launch>();
  check(given, *launch);
  check_overlap(given);
  queue_launch(std::move(launch));
}

void JobPlan::tell_autograd(const std::vector<Given>& given) const {
  for (std::size_t i = 0; i < given.size(); ++i)
    if (const auto* argument = std::get_if<TensorArgument>(&description_.arguments[i]);
        argument != nullptr && argument->writes) {
      const at::Tensor& written = std::get<at::Tensor>(given[i]);
      TORCH_CHECK_VALUE(
          !written.requires_grad() || !c10::GradMode::is_enabled(), "launch of '", description_.name,
          "': argument ", i, " ('", argument->name,
          "') is written and requires grad, which a launch does not record: use torch.no_grad()");
      // What autograd saved of it is no longer what it was.
      if (!written.is_inference())
        written.unsafeGetTensorImpl()->bump_version();
    }
}

void JobPlan::queue_launch(std::shared_ptr<Launch> launch) const {
  bridge::Runtime& runtime = bridge::Runtime::get();
  card::Queue& queue = bridge::current_queue(device_);
  launch->plan = shared_from_this();
  launch->scratch_bytes = non_negative(description_.scratch.evaluate(launch->symbols), "scratch memory");
  if (launch->scratch_bytes != 0)
    launch->scratch = bridge::device_allocator().allocate_on(device_, launch->scratch_bytes);

  card::Compute compute;
  std::unique_lock<std::mutex> queueing;
  card::Footprint footprint = std::move(launch->footprint);
  if (regions_ != 0) {
    card::Queue& preparation = runtime.preparation_queue(queue);
    const std::shared_ptr<std::byte[]> staging = staging_->acquire();
    std::size_t index = 0;
    std::tie(index, queueing) = take_region();
    const card::Span corrections = region(index);
    card::Operation compute_on_host{card::HostCallback{[launch, staging] {
      try {
        launch->plan->compute_slots(*launch, reinterpret_cast<std::uint64_t*>(staging.get()));
      } catch (...) {
        // The transfer goes on: the Compute of this launch gives the error to its stream.
        launch->failure = std::current_exception();
      }
    }}};
    compute_on_host.label = description_.name + ": compute on host";
    preparation.submit(std::move(compute_on_host));
    card::Operation transfer{card::CopyToDevice{staging.get(), corrections}, staging};
    transfer.label = description_.name + ": patch";
    preparation.submit(std::move(transfer));
    compute.program = corrections;
    compute.fetch_barrier = description_.fetch_barrier;
    footprint.reads.push_back(corrections);
  }
  compute.kernel = [launch, threads = at::get_num_threads()](std::span<const std::byte> corrections) {
    if (launch->failure)
      std::rethrow_exception(launch->failure);
    // A worker's kernels use as many threads as its caller's would.
    if (at::get_num_threads() != threads)
      at::set_num_threads(threads);
    launch->plan->program_->run(corrections);
  };
  card::Operation operation{std::move(compute), launch};
  operation.detached = launch->touched >= kDetachedBytes;
  operation.footprint = std::move(footprint);
  const card::CostModel& costs = runtime.scheduler().costs();
  operation.cost =
      costs.compute +
      std::max(card::CostModel::at_rate(non_negative(description_.bytes.evaluate(launch->symbols), "bytes"),
                                        costs.memory_rate),
               card::CostModel::at_rate(
                   non_negative(description_.operations.evaluate(launch->symbols), "operations"),
                   costs.operation_rate));
  operation.label = description_.name;
  queue.submit(std::move(operation));
}

} // namespace spyre::programs
