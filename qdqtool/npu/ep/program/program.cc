#include "program/program.hpp"

#include <cstring>
#include <limits>
#include <unordered_map>

#include "program/protobuf.hpp"

namespace qdqtool {

namespace {

using protobuf::Reader;


// A standard domain may be written in two ways.
std::string key_of(const std::string& domain, const std::string& op_type) {
  return (domain == "ai.onnx" ? "" : domain) + "::" + op_type;
}

const Operator& operator_of(const std::string& domain, const std::string& op_type) {
  const auto found = operators().find(key_of(domain, op_type));
  if (found == operators().end()) throw Error("there is no kernel for it" + (domain.empty() ? "" : " in " + domain));
  return *found->second;
}

class Builder {
 public:
  Builder(std::string bytes, Isa isa) : program_(std::make_shared<Program>()), isa_(isa) { program_->bytes = std::move(bytes); }

  std::shared_ptr<const Program> build(size_t begin, size_t size) {
    const std::string_view model = std::string_view(program_->bytes).substr(begin, size);
    std::string_view graph;
    for (Reader r(model); r.next();) {
      if (r.field() == 7) graph = r.bytes();
      if (r.field() == 8) check_opset(r.bytes());
      if (r.field() == 25) throw Error("the program has local functions");
    }
    // Constants and inputs first: they stand after the nodes in the file.
    for (Reader r(graph); r.next();) {
      if (r.field() == 5) add_constant(r.bytes());
      if (r.field() == 15) throw Error("the program has sparse constants");
    }
    for (Reader r(graph); r.next();) {
      if (r.field() == 11) add_input(r.bytes());
    }
    for (Reader r(graph); r.next();) {
      if (r.field() == 1) add_node(r.bytes());
    }
    for (Reader r(graph); r.next();) {
      if (r.field() == 12) add_output(r.bytes());
    }
    if (program_->outputs.empty()) throw Error("the program has no outputs");
    return program_;
  }

 private:
  int define(Value value) {
    const int index = static_cast<int>(program_->values.size());
    if (value.name.empty()) throw Error("the program has a value without a name");
    if (!names_.emplace(value.name, index).second) throw Error("the program defines '" + value.name + "' twice");
    program_->values.push_back(std::move(value));
    return index;
  }

  static void check_opset(std::string_view bytes) {
    std::string domain;
    int64_t version = 0;
    for (Reader r(bytes); r.next();) {
      if (r.field() == 1) domain = r.text();
      if (r.field() == 2) version = r.integer();
    }
    if (domain == operator_domain && version != operator_version) {
      throw Error("expected operators " + domain + " of version " + std::to_string(operator_version) + ", found " +
                  std::to_string(version));
    }
  }

  void add_constant(std::string_view bytes);
  void add_input(std::string_view bytes);
  void add_node(std::string_view bytes);
  void add_attribute(std::string_view bytes, Attributes& attributes);

  void add_output(std::string_view bytes) {
    for (Reader r(bytes); r.next();) {
      if (r.field() != 1) continue;
      const auto found = names_.find(r.text());
      if (found == names_.end()) throw Error("nothing computes the program's output '" + r.text() + "'");
      program_->outputs.push_back(found->second);
      return;
    }
    throw Error("the program has an output without a name");
  }

  std::shared_ptr<Program> program_;
  std::unordered_map<std::string, int> names_;
  Isa isa_;
};

// TensorProto → a Value with data. The numbers are in raw_data, or in the list of their type.
void Builder::add_constant(std::string_view bytes) {
  Value value;
  value.is_constant = value.has_shape = true;
  std::string_view raw;
  bool is_raw = false;
  std::string typed;  // bytes of the elements that came as a list
  const auto append = [&typed](const auto& number, size_t size) {
    if (size > sizeof number) throw Error("its numbers are of another type");
    typed.append(reinterpret_cast<const char*>(&number), size);
  };
  for (Reader r(bytes); r.next();) {
    if (r.field() == 1) r.integers([&value](int64_t dim) { value.shape.push_back(dim); });
    if (r.field() == 2) value.type = static_cast<DataType>(r.integer());
    if (r.field() == 8) value.name = r.text();
    if (r.field() == 9) raw = r.bytes(), is_raw = true;
    if (r.field() == 14 && r.integer()) throw Error("the program has constants outside of it");
  }
  try {
    if (value.shape.size() > max_rank) throw Error("it has " + std::to_string(value.shape.size()) + " dimensions");
    const size_t element = size_of(value.type);
    for (Reader r(bytes); r.next();) {
      // Little end first, as everywhere: the low bytes of an integer are the integer in its own type.
      if (r.field() == 5 || r.field() == 7 || r.field() == 11) r.integers([&](int64_t number) { append(number, element); });
      if (r.field() == 4) r.reals([&](float number) { append(number, element); });
      if (r.field() == 10) r.doubles([&](double number) { append(number, element); });
    }
    if (!is_raw) raw = typed;
    const auto count = static_cast<uint64_t>(count_of(value.shape));
    if (count > std::numeric_limits<size_t>::max() / element || count * element != raw.size()) {
      throw Error("its shape and its " + std::to_string(raw.size()) + " bytes do not agree");
    }
    const bool is_aligned = reinterpret_cast<uintptr_t>(raw.data()) % element == 0;
    value.data = raw.data();
    if (!is_raw || !is_aligned || raw.empty()) {
      program_->copies.emplace_back(new char[raw.size() + 1]);  // aligned for every element type
      value.data = std::memcpy(program_->copies.back().get(), raw.empty() ? "" : raw.data(), raw.size());
    }
  } catch (const Error& error) {
    throw Error("constant '" + value.name + "': " + error.what());
  }
  define(std::move(value));
}

// ValueInfoProto. An input with the name of a constant is that constant, as models before IR version 4 write it.
void Builder::add_input(std::string_view bytes) {
  Value value;
  for (Reader r(bytes); r.next();) {
    if (r.field() == 1) value.name = r.text();
    if (r.field() != 2) continue;
    for (Reader type(r.bytes()); type.next();) {
      if (type.field() != 1) throw Error("the program has an input that is no tensor");
      for (Reader tensor(type.bytes()); tensor.next();) {
        if (tensor.field() == 1) value.type = static_cast<DataType>(tensor.integer());
        if (tensor.field() != 2) continue;
        value.has_shape = true;
        for (Reader shape(tensor.bytes()); shape.next();) {
          if (shape.field() != 1) continue;
          int64_t size = -1;
          for (Reader dim(shape.bytes()); dim.next();) {
            if (dim.field() == 1) size = dim.integer();
          }
          value.shape.push_back(size < 0 ? -1 : size);
        }
      }
    }
  }
  if (value.shape.size() > max_rank) throw Error("input '" + value.name + "' has " + std::to_string(value.shape.size()) + " dimensions");
  const auto found = names_.find(value.name);
  if (found != names_.end() && program_->values[found->second].is_constant) return;
  size_of(value.type);  // refuses a type that nothing reads
  program_->inputs.push_back(define(std::move(value)));
}

void Builder::add_attribute(std::string_view bytes, Attributes& attributes) {
  std::string name, text;
  int64_t type = 0, integer = 0;
  float real = 0;
  std::vector<int64_t> integers;
  std::vector<float> reals;
  for (Reader r(bytes); r.next();) {
    switch (r.field()) {
      case 1: name = r.text(); break;
      case 2: real = r.real(); break;
      case 3: integer = r.integer(); break;
      case 4: text = r.text(); break;
      case 7: r.reals([&reals](float number) { reals.push_back(number); }); break;
      case 8: r.integers([&integers](int64_t number) { integers.push_back(number); }); break;
      case 20: type = r.integer(); break;
    }
  }
  switch (type) {  // AttributeProto.AttributeType
    case 1: attributes.floats[name] = real; break;
    case 2: attributes.ints[name] = integer; break;
    case 3: attributes.strings[name] = text; break;
    case 6: attributes.float_lists[name] = reals; break;
    case 7: attributes.int_lists[name] = integers; break;
    default: throw Error("attribute '" + name + "' is neither a number, a text nor a list of numbers");
  }
}

void Builder::add_node(std::string_view bytes) {
  Node node;
  std::string domain;
  std::vector<std::string> inputs, outputs;
  for (Reader r(bytes); r.next();) {
    switch (r.field()) {
      case 1: inputs.push_back(r.text()); break;
      case 2: outputs.push_back(r.text()); break;
      case 3: node.info.name = r.text(); break;
      case 4: node.info.op_type = r.text(); break;
      case 7: domain = r.text(); break;
    }
  }
  if (node.info.name.empty() && !outputs.empty()) node.info.name = outputs[0];
  node.info.isa = isa_;
  try {
    for (Reader r(bytes); r.next();) {
      if (r.field() == 5) add_attribute(r.bytes(), node.info.attributes);
    }
    node.op = &operator_of(domain, node.info.op_type);
    node.op->check(inputs.size(), node.info.attributes);
    std::vector<DataType> types;
    for (const std::string& name : inputs) {
      const auto found = names_.find(name);
      if (!name.empty() && found == names_.end()) throw Error("nothing before it computes its input '" + name + "'");
      node.inputs.push_back(name.empty() ? -1 : found->second);
      Tensor input;
      if (!name.empty()) {
        const Value& value = program_->values[found->second];
        input = {value.type, value.is_constant ? value.shape : Shape(), const_cast<void*>(value.data)};
      }
      types.push_back(input.type);
      node.info.inputs.push_back(std::move(input));
    }
    if (outputs.empty()) throw Error("it has no outputs");
    node.info.outputs = node.op->output_types(node.info.attributes, types, outputs.size());
    for (size_t i = 0; i < outputs.size(); ++i) {
      Value value;
      value.name = outputs[i];
      size_of(value.type = node.info.outputs[i]);
      node.outputs.push_back(define(std::move(value)));
    }
  } catch (const Error& error) {
    throw Error(describe(node.info) + ": " + error.what());
  }
  program_->nodes.push_back(std::move(node));
}

}  // namespace

std::shared_ptr<const Program> read_program(std::string bytes, size_t begin, size_t size, Isa isa) {
  return Builder(std::move(bytes), isa).build(begin, size);
}

std::string describe(const NodeInfo& info) { return "node '" + info.name + "' (" + info.op_type + ")"; }

}  // namespace qdqtool
