// What a prepared program is on the host, and how it is launched.
#pragma once

#include "card/device.h"
#include "card/queue.h"
#include "card/staging.h"
#include "programs/expression.h"
#include "programs/program.h"

#include <ATen/core/Tensor.h>
#include <atomic>
#include <c10/core/Device.h>
#include <c10/core/Storage.h>
#include <cstdint>
#include <exception>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <utility>
#include <variant>
#include <vector>

namespace spyre::programs {

// A size that no launch has given a value yet.
struct Symbol {
  std::string name;
  std::int64_t minimum;
  std::int64_t maximum;
  std::int64_t multiple; // values are multiples of it
};

// What a launch is given, in this order of kinds.
struct TensorArgument {
  std::string name;
  c10::ScalarType dtype;
  std::vector<Expression> shape;   // elements
  std::vector<Expression> strides; // elements
  bool reads;
  bool writes;
};
// A whole number that binds a symbol.
struct IntegerArgument {
  std::string name;
  std::size_t symbol;
};
// A number that is a value and no size; travels as a double or as a 64-bit integer.
struct ScalarArgument {
  std::string name;
  bool whole;
};
using Argument = std::variant<TensorArgument, IntegerArgument, ScalarArgument>;

// One word of the correction region: what the host computes for it at a launch.
struct Slot {
  enum class Kind : std::int64_t {
    Address,  // of a tensor argument: its first element, so its storage offset is part of it
    Scratch,  // an address in the launch's scratch memory, at `value` bytes
    Size,     // `value`
    Scalar,   // a scalar argument, its bits
    Constant, // an address in the program's constants, at `value` bytes
  };
  Kind kind;
  std::size_t argument; // Address, Scalar
  Expression value;     // Scratch, Size, Constant
};

struct PlanDescription {
  std::string name;
  std::vector<Symbol> symbols;
  std::vector<Argument> arguments;
  std::vector<Slot> slots;
  Expression scratch;    // bytes
  Expression bytes;      // of device memory that a launch reads and writes, for the virtual clock
  Expression operations; // floating point operations, for the virtual clock
  bool fetch_barrier = true;
};

// What a caller hands over: a tensor or a number.
using Given = std::variant<at::Tensor, std::int64_t, double>;

// A program on one device, ready to be launched. Immutable: threads may launch it at once, on any streams.
//
// Its memory is the text, the constants, then the correction regions. A launch is three operations: the host
// computes the slots into a staging buffer, a transfer carries them to a correction region, the Compute reads
// them from there. The first two go to the preparation queue of the stream, the third to the stream;
// footprints order them. A program without slots is its Compute alone.
class JobPlan : public std::enable_shared_from_this<JobPlan> {
public:
  // Allocates program memory on the device and uploads text and constants, once. Throws InvalidArgument for a
  // description or a text that is wrong, and OutOfMemory.
  JobPlan(PlanDescription description, std::span<const std::byte> text, std::span<const std::byte> constants,
          std::shared_ptr<const Library> library, c10::DeviceIndex device);
  ~JobPlan();
  JobPlan(const JobPlan&) = delete;
  JobPlan& operator=(const JobPlan&) = delete;

  // Queues one execution on the current stream of the device and returns. Throws before anything is queued
  // when an argument is not what the program takes: a ValueError or TypeError that names the argument.
  void launch(const std::vector<Given>& given) const;
  // The same for a kernel: autograd was told what is written before it was called.
  void launch_below_autograd(const std::vector<Given>& given) const;

  // True for a program that run() can run: its slots are addresses and scalars of arguments and nothing else.
  bool runs_directly() const;
  // One execution at the caller's turn on the current stream: it patches the program, computes on its thread
  // and returns when it is done. Returns what an operator threw, or null: the stream does not fail. Throws,
  // and runs nothing, when the stream had failed before.
  //
  // For a caller that keeps the plan to itself, never launches it meanwhile, and has checked the arguments:
  // `words` has one word per argument, the address of a tensor or the bits of a scalar, and `touched` is the
  // memory of all tensors. Needs runs_directly().
  std::exception_ptr run(std::span<const std::uint64_t> words, const card::Footprint& touched) const;

  const PlanDescription& description() const { return description_; }
  c10::DeviceIndex device() const { return device_; }
  // Bytes of device memory that every launch shares: the text and the constants.
  std::uint64_t image_bytes() const { return image_bytes_; }
  std::uint64_t region_bytes() const { return region_bytes_; }
  std::size_t regions() const { return regions_; }
  std::size_t instructions() const { return program_->instructions(); }

private:
  struct Launch;

  void check(const std::vector<Given>& given, Launch& launch) const;
  void check_tensor(const TensorArgument& argument, std::size_t index, const at::Tensor& tensor,
                    Launch& launch) const;
  void bind(std::size_t symbol, std::int64_t value, const std::string& where, Launch& launch) const;
  void check_overlap(const std::vector<Given>& given) const;
  // Refuses writes that autograd would have to record, and tells it of the others.
  void tell_autograd(const std::vector<Given>& given) const;
  void queue_launch(std::shared_ptr<Launch> launch) const;
  std::vector<bool> writable_slots() const;
  void compute_slots(const Launch& launch, std::uint64_t* words) const;
  card::Span region(std::size_t index) const;
  // Takes a region that no other thread is queueing a launch for, if there is one.
  std::pair<std::size_t, std::unique_lock<std::mutex>> take_region() const;

  const PlanDescription description_;
  const c10::DeviceIndex device_;
  const std::uint64_t constants_at_; // bytes from the program's start
  const std::uint64_t image_bytes_;
  const std::uint64_t region_bytes_; // of one correction region; 0 for a program without slots
  const std::size_t regions_;
  card::Block* block_ = nullptr;
  std::unique_ptr<Program> program_;
  std::unique_ptr<card::StagingPool> staging_;
  mutable std::atomic<std::size_t> next_region_{0};
  // Held while a patch and the Compute that reads it are queued: no other launch's patch may come between
  // them.
  const std::unique_ptr<std::mutex[]> region_mutexes_;
};

} // namespace spyre::programs
