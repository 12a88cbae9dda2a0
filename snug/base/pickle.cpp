#include "snug/base/pickle.h"

#include <cstring>
#include <map>
#include <utility>

#include "snug/base/byte_cursor.h"

namespace snug {
namespace {

constexpr std::size_t kLongestName = 256;  // of a class or a function

/// The instructions, by their letters there.
enum Instruction : std::uint8_t {
  kMark = '(',
  kStop = '.',
  kPop = '0',
  kPopMark = '1',
  kDup = '2',
  kBinFloat = 'G',
  kBinInt = 'J',
  kBinInt1 = 'K',
  kBinInt2 = 'M',
  kNone = 'N',
  kBeside = 'Q',
  kReduce = 'R',
  kBinUnicode = 'X',
  kAppend = 'a',
  kBuild = 'b',
  kGlobal = 'c',
  kDict = 'd',
  kAppends = 'e',
  kBinGet = 'h',
  kLongBinGet = 'j',
  kList = 'l',
  kBinPut = 'q',
  kLongBinPut = 'r',
  kSetItem = 's',
  kTuple = 't',
  kSetItems = 'u',
  kEmptyDict = '}',
  kEmptyList = ']',
  kEmptyTuple = ')',
  kBinBytes = 'B',
  kShortBinBytes = 'C',
  kBinString = 'T',
  kShortBinString = 'U',
  kProto = 0x80,
  kNewObj = 0x81,
  kTuple1 = 0x85,
  kTuple2 = 0x86,
  kTuple3 = 0x87,
  kTrue = 0x88,
  kFalse = 0x89,
  kLong1 = 0x8a,
  kShortUnicode = 0x8c,
  kUnicode8 = 0x8d,
  kBinBytes8 = 0x8e,
  kEmptySet = 0x8f,
  kAddItems = 0x90,
  kFrozenSet = 0x91,
  kNewObjEx = 0x92,
  kStackGlobal = 0x93,
  kMemoize = 0x94,
  kFrame = 0x95
};

class Reader {
 public:
  Reader(std::span<const std::uint8_t> bytes, std::string_view name, std::deque<Pickled>& values)
      : cursor_(bytes, name), values_(values) {}

  const Pickled* read() {
    if (cursor_.take<std::uint8_t>("a pickle") != kProto)
      cursor_.fail("it is no pickle: it does not begin with a protocol");
    if (const auto protocol = cursor_.take<std::uint8_t>("the protocol"); protocol < 2 || protocol > 5)
      cursor_.fail("a pickle of protocol {}; those from 2 to 5 are read", protocol);
    for (;;) {
      const auto instruction = cursor_.take<std::uint8_t>("an instruction");
      if (instruction == kStop) break;
      if (!constant(instruction) && !remembered(instruction) && !gathered(instruction) && !made(instruction))
        cursor_.fail("instruction {:#04x}, with which no data is written", instruction);
    }
    const Pickled* const root = pop();
    if (!stack_.empty()) cursor_.fail("{} values are left over at its end", stack_.size());
    return root;
  }

 private:
  template <class Value>
  void push(Value value) {
    values_.push_back({std::move(value)});
    stack_.push_back(&values_.back());
  }
  Pickled* top() {
    if (stack_.size() <= marks_.back()) cursor_.fail("a value is taken, and there is none");
    return stack_.back();
  }
  Pickled* pop() {
    Pickled* const value = top();
    stack_.pop_back();
    return value;
  }
  /// What has come since the last mark, which is taken away.
  Pickled::List pop_to_mark() {
    if (marks_.size() == 1) cursor_.fail("a mark is asked for, and there is none");
    Pickled::List list(stack_.begin() + static_cast<std::ptrdiff_t>(marks_.back()), stack_.end());
    stack_.resize(marks_.back());
    marks_.pop_back();
    return list;
  }
  template <class Value>
  Value& as(Pickled* value, const char* what) {
    if (auto* const found = std::get_if<Value>(&value->value)) return *found;
    cursor_.fail("{} is wanted, and another value is there", what);
  }
  Pickled::List arguments() { return as<Pickled::List>(pop(), "a tuple of arguments"); }

  template <class Length>
  std::string text(const char* what) {
    const auto length = cursor_.take<Length>(what);
    return cursor_.take_text(length, what);
  }
  std::string line() {
    std::string text;
    for (auto c = cursor_.take<char>("a name"); c != '\n'; c = cursor_.take<char>("a name")) text += c;
    return text;
  }
  /// Little-endian, in two's complement.
  std::int64_t long_number() {
    const auto bytes = cursor_.take<std::uint8_t>("a number");
    if (bytes > 8) cursor_.fail("a number of {} bytes; those of up to 8 are read", bytes);
    std::uint64_t number = 0;
    for (int i = 0; i < bytes; ++i) number |= std::uint64_t{cursor_.take<std::uint8_t>("a number")} << (8 * i);
    const int unused = 64 - 8 * bytes;
    return bytes == 0 ? 0 : static_cast<std::int64_t>(number << unused) >> unused;
  }
  double big_endian_float() {
    std::uint64_t bits = 0;
    for (int i = 0; i < 8; ++i) bits = bits << 8U | cursor_.take<std::uint8_t>("a number");
    double number = 0;
    std::memcpy(&number, &bits, sizeof number);
    return number;
  }

  bool constant(std::uint8_t instruction) {
    using Number = std::int64_t;
    switch (instruction) {
      case kNone:
        return push(Pickled::None{}), true;
      case kTrue:
        return push(true), true;
      case kFalse:
        return push(false), true;
      case kBinInt:
        return push(Number{cursor_.take<std::int32_t>("a number")}), true;
      case kBinInt1:
        return push(Number{cursor_.take<std::uint8_t>("a number")}), true;
      case kBinInt2:
        return push(Number{cursor_.take<std::uint16_t>("a number")}), true;
      case kLong1:
        return push(long_number()), true;
      case kBinFloat:
        return push(big_endian_float()), true;
      case kShortUnicode:
        return push(Pickled::Text{text<std::uint8_t>("a text")}), true;
      case kBinUnicode:
        return push(Pickled::Text{text<std::uint32_t>("a text")}), true;
      case kUnicode8:
        return push(Pickled::Text{text<std::uint64_t>("a text")}), true;
      case kShortBinString:
        return push(Pickled::Text{text<std::uint8_t>("a text")}), true;
      case kBinString:
        return push(Pickled::Text{text<std::uint32_t>("a text")}), true;
      case kShortBinBytes:
        return push(Pickled::Bytes{text<std::uint8_t>("bytes")}), true;
      case kBinBytes:
        return push(Pickled::Bytes{text<std::uint32_t>("bytes")}), true;
      case kBinBytes8:
        return push(Pickled::Bytes{text<std::uint64_t>("bytes")}), true;
      default:
        return false;
    }
  }

  bool remembered(std::uint8_t instruction) {
    const auto get = [&](std::uint64_t number) {
      const auto found = memo_.find(number);
      if (found == memo_.end()) cursor_.fail("value {} is asked for, and has not been remembered", number);
      stack_.push_back(found->second);
    };
    switch (instruction) {
      case kFrame:
        return (void)cursor_.take<std::uint64_t>("a frame"), true;
      case kMemoize:
        return memo_[memo_.size()] = top(), true;
      case kBinPut:
        return memo_[cursor_.take<std::uint8_t>("a place")] = top(), true;
      case kLongBinPut:
        return memo_[cursor_.take<std::uint32_t>("a place")] = top(), true;
      case kBinGet:
        return get(cursor_.take<std::uint8_t>("a place")), true;
      case kLongBinGet:
        return get(cursor_.take<std::uint32_t>("a place")), true;
      case kMark:
        return marks_.push_back(stack_.size()), true;
      case kPop:
        return (void)pop(), true;
      case kPopMark:
        return (void)pop_to_mark(), true;
      case kDup:
        return stack_.push_back(top()), true;
      default:
        return false;
    }
  }

  void add(Pickled* to, const Pickled::List& items) {
    auto* const object = std::get_if<Pickled::Object>(&to->value);
    Pickled::List& list = object != nullptr ? object->items : as<Pickled::List>(to, "a list");
    list.insert(list.end(), items.begin(), items.end());
  }
  void set(Pickled* of, const Pickled::List& items) {
    if (items.size() % 2 != 0) cursor_.fail("a key without a value");
    auto* const object = std::get_if<Pickled::Object>(&of->value);
    Pickled::Dict& dict = object != nullptr ? object->entries : as<Pickled::Dict>(of, "a dict");
    for (std::size_t i = 0; i < items.size(); i += 2) dict.push_back({items[i], items[i + 1]});
  }
  void push_tuple(std::size_t count) {
    Pickled::List list(count);
    for (std::size_t i = count; i-- > 0;) list[i] = pop();
    push(std::move(list));
  }

  bool gathered(std::uint8_t instruction) {
    switch (instruction) {
      case kEmptyTuple:
      case kEmptyList:
      case kEmptySet:
        return push(Pickled::List{}), true;
      case kEmptyDict:
        return push(Pickled::Dict{}), true;
      case kTuple1:
        return push_tuple(1), true;
      case kTuple2:
        return push_tuple(2), true;
      case kTuple3:
        return push_tuple(3), true;
      case kTuple:
      case kList:
      case kFrozenSet:
        return push(pop_to_mark()), true;
      case kDict: {
        const Pickled::List items = pop_to_mark();
        push(Pickled::Dict{});
        return set(top(), items), true;
      }
      case kAppend: {
        const Pickled* const item = pop();
        return add(top(), {item}), true;
      }
      case kAppends:
      case kAddItems: {
        const Pickled::List items = pop_to_mark();
        return add(top(), items), true;
      }
      case kSetItem: {
        const Pickled* const value = pop();
        const Pickled* const key = pop();
        return set(top(), {key, value}), true;
      }
      case kSetItems: {
        const Pickled::List items = pop_to_mark();
        return set(top(), items), true;
      }
      default:
        return false;
    }
  }

  void push_object(const Pickled* of, Pickled::List arguments) {
    const auto* const global = std::get_if<Pickled::Global>(&of->value);
    push(Pickled::Object{.made_by = global != nullptr ? std::string_view(global->name) : std::string_view(),
                         .arguments = std::move(arguments)});
  }

  bool made(std::uint8_t instruction) {
    switch (instruction) {
      case kGlobal: {
        const std::string module = line();
        return push(Pickled::Global{module + "." + line()}), true;
      }
      case kStackGlobal: {
        // A few bytes each time for what may be long.
        const auto& name = as<Pickled::Text>(pop(), "a name").text;
        const auto& module = as<Pickled::Text>(pop(), "a module").text;
        if (name.size() + module.size() > kLongestName)
          cursor_.fail("a name of {} characters", name.size() + module.size());
        return push(Pickled::Global{module + "." + name}), true;
      }
      case kReduce:
      case kNewObj:
      case kNewObjEx: {
        if (instruction == kNewObjEx) (void)pop();  // keywords
        Pickled::List given = arguments();
        const Pickled* const of = pop();
        return push_object(of, std::move(given)), true;
      }
      case kBuild: {
        const Pickled* const state = pop();
        return as<Pickled::Object>(top(), "an object").state = state, true;
      }
      case kBeside: {
        const Pickled* const id = pop();
        return push(Pickled::Beside{id}), true;
      }
      default:
        return false;
    }
  }

  ByteCursor cursor_;
  std::deque<Pickled>& values_;
  std::vector<Pickled*> stack_;
  std::vector<std::size_t> marks_{0};  // where the stack was; at the front, nothing
  std::map<std::uint64_t, Pickled*> memo_;
};

}  // namespace

PickleFile::PickleFile(std::span<const std::uint8_t> bytes, std::string_view name)
    : root_(Reader(bytes, name, values_).read()) {}

}  // namespace snug
