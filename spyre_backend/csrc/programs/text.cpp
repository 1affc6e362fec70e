#include "programs/text.h"

#include "card/error.h"

#include <cstring>

namespace spyre::programs {
namespace {

// Lists in arguments are as deep as PyTorch's schemas allow, and a little more.
constexpr int kDeepest = 4;

class Reader {
public:
  explicit Reader(std::span<const std::byte> bytes) : bytes_(bytes) {}

  // What is being read, for messages.
  void enter(const char* part, std::size_t index) {
    part_ = part;
    index_ = index;
  }
  [[noreturn]] void refuse(const std::string& why) const {
    throw card::InvalidArgument("program text, " + std::string(part_) + " " + std::to_string(index_) + ": " +
                                why);
  }

  std::int64_t word() {
    if (bytes_.size() - at_ < sizeof(std::int64_t))
      refuse("the text ends here");
    std::int64_t value = 0;
    std::memcpy(&value, bytes_.data() + at_, sizeof(value));
    at_ += sizeof(value);
    return value;
  }
  // A number of things that each take at least one more word.
  std::size_t count(const char* what) {
    const std::int64_t value = word();
    if (value < 0 || static_cast<std::uint64_t>(value) > (bytes_.size() - at_) / sizeof(std::int64_t))
      refuse(std::to_string(value) + " " + what + " do not fit into the text");
    return static_cast<std::size_t>(value);
  }
  std::size_t index(std::size_t limit, const char* what) {
    const std::int64_t value = word();
    if (value < 0 || static_cast<std::uint64_t>(value) >= limit)
      refuse("there is no " + std::string(what) + " " + std::to_string(value));
    return static_cast<std::size_t>(value);
  }
  Number number(std::size_t slots) {
    const std::int64_t kind = word();
    if (kind == 0)
      return {false, word()};
    if (kind != 1)
      refuse("a number is a literal (0) or a slot (1), not " + std::to_string(kind));
    return {true, static_cast<std::int64_t>(index(slots, "slot"))};
  }
  double real() {
    const std::int64_t bits = word();
    double value = 0;
    std::memcpy(&value, &bits, sizeof(value));
    return value;
  }
  std::string characters() {
    const std::int64_t length = word();
    if (length < 0 || static_cast<std::uint64_t>(length) > bytes_.size() - at_)
      refuse("the text ends in a string");
    std::string result(reinterpret_cast<const char*>(bytes_.data() + at_), static_cast<std::size_t>(length));
    for (const char character : result)
      if (character < ' ' || character > '~')
        refuse("a string has a character that is not printable ASCII");
    at_ += (static_cast<std::size_t>(length) + 7) / 8 * 8;
    if (at_ > bytes_.size())
      refuse("the text ends in a string");
    return result;
  }
  bool at_end() const { return at_ == bytes_.size(); }

private:
  std::span<const std::byte> bytes_;
  std::size_t at_ = 0;
  const char* part_ = "header";
  std::size_t index_ = 0;
};

struct Limits {
  std::size_t slots;
  std::size_t operands;
  std::size_t strings;
};

Value value_from(Reader& reader, const Limits& limits, int depth) {
  Value value;
  value.tag = static_cast<Tag>(reader.word());
  switch (value.tag) {
  case Tag::None:
  case Tag::Device:
  case Tag::Default:
    return value;
  case Tag::Bool:
    value.number = {false, reader.word()};
    return value;
  case Tag::Int:
    value.number = reader.number(limits.slots);
    return value;
  case Tag::Float:
    value.real = reader.real();
    return value;
  case Tag::Complex:
    value.real = reader.real();
    value.imaginary = reader.real();
    return value;
  case Tag::FloatSlot:
    value.number = {true, static_cast<std::int64_t>(reader.index(limits.slots, "slot"))};
    return value;
  case Tag::String:
    value.number = {false, static_cast<std::int64_t>(reader.index(limits.strings, "string"))};
    return value;
  case Tag::Operand:
    value.number = {false, static_cast<std::int64_t>(reader.index(limits.operands, "operand"))};
    return value;
  case Tag::List:
    if (depth == kDeepest)
      reader.refuse("lists are nested too deeply");
    for (std::size_t left = reader.count("values"); left != 0; --left)
      value.values.push_back(value_from(reader, limits, depth + 1));
    return value;
  }
  reader.refuse("unknown tag " + std::to_string(static_cast<std::int64_t>(value.tag)));
}

} // namespace

Text decode(std::span<const std::byte> bytes) {
  Reader reader(bytes);
  if (reader.word() != kMagic)
    reader.refuse("this is no program: it does not begin with SPYRCODE");
  if (const std::int64_t version = reader.word(); version != kVersion)
    reader.refuse("version " + std::to_string(version) + " is not known here, only " +
                  std::to_string(kVersion));
  Text text;
  text.slots = reader.count("slots");
  const std::size_t storages = reader.count("storages");
  const std::size_t operands = reader.count("operands");
  const std::size_t instructions = reader.count("instructions");
  const Limits limits{text.slots, operands, reader.count("strings")};

  for (std::size_t i = 0; i < storages; ++i) {
    reader.enter("storage", i);
    text.storages.push_back(reader.index(text.slots, "slot"));
  }
  for (std::size_t i = 0; i < operands; ++i) {
    reader.enter("operand", i);
    OperandText operand;
    operand.storage = reader.index(storages, "storage");
    operand.dtype = reader.word();
    operand.offset = reader.number(text.slots);
    const std::size_t rank = reader.count("dimensions");
    for (std::size_t d = 0; d < rank; ++d)
      operand.sizes.push_back(reader.number(text.slots));
    for (std::size_t d = 0; d < rank; ++d)
      operand.strides.push_back(reader.number(text.slots));
    text.operands.push_back(std::move(operand));
  }
  struct Names {
    std::size_t name;
    std::size_t overload;
  };
  std::vector<Names> names;
  for (std::size_t i = 0; i < instructions; ++i) {
    reader.enter("instruction", i);
    InstructionText instruction;
    instruction.kind = static_cast<Kind>(reader.word());
    if (instruction.kind != Kind::Operator && instruction.kind != Kind::Kernel)
      reader.refuse("unknown kind " + std::to_string(static_cast<std::int64_t>(instruction.kind)));
    names.push_back({reader.index(limits.strings, "string"), reader.index(limits.strings, "string")});
    for (std::size_t left = reader.count("arguments"); left != 0; --left)
      instruction.arguments.push_back(value_from(reader, limits, 0));
    for (std::size_t left = reader.count("results"); left != 0; --left) {
      instruction.results.push_back(reader.word());
      if (instruction.results.back() < -1 ||
          instruction.results.back() >= static_cast<std::int64_t>(operands))
        reader.refuse("there is no operand " + std::to_string(instruction.results.back()));
    }
    text.instructions.push_back(std::move(instruction));
  }
  for (std::size_t i = 0; i < limits.strings; ++i) {
    reader.enter("string", i);
    text.strings.push_back(reader.characters());
  }
  if (!reader.at_end())
    reader.refuse("there are bytes after the end");
  for (std::size_t i = 0; i < instructions; ++i) {
    text.instructions[i].name = text.strings[names[i].name];
    text.instructions[i].overload = text.strings[names[i].overload];
  }
  return text;
}

} // namespace spyre::programs
