// What tests of kernels share: random numbers, tensors that own their memory, and a run of one kernel as the provider does it.
#pragma once
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "kernels/shared/isa.hpp"
#include "program/operators.hpp"

namespace test {

using qdqtool::DataType;
using qdqtool::Error;
using qdqtool::Isa;
using qdqtool::Kernel;
using qdqtool::NodeInfo;
using qdqtool::ParallelFor;
using qdqtool::Shape;
using qdqtool::Tensor;

// The same numbers in every run.
class Random {
 public:
  explicit Random(uint64_t seed) : engine_(seed) {}
  int64_t integer(int64_t low, int64_t high) {
    return low + static_cast<int64_t>(engine_() % static_cast<uint64_t>(high - low + 1));
  }
  bool flag() { return integer(0, 1) == 1; }
  float real(float low, float high) {
    return low + (high - low) * static_cast<float>(engine_() >> 40) / static_cast<float>(1 << 24);
  }
  template <class T>
  T one_of(std::initializer_list<T> choices) {
    return choices.begin()[integer(0, static_cast<int64_t>(choices.size()) - 1)];
  }

 private:
  std::mt19937_64 engine_;
};

// A tensor and its memory, which is aligned to 64 bytes and ends where the elements do.
class Data {
 public:
  Data() = default;
  Data(DataType type, Shape shape) {
    tensor.type = type, tensor.shape = std::move(shape);
    const size_t bytes = static_cast<size_t>(tensor.count()) * qdqtool::size_of(type);
    memory_ = std::shared_ptr<char>(static_cast<char*>(::operator new(bytes + !bytes, std::align_val_t{64})),
                                    [](char* memory) { ::operator delete(memory, std::align_val_t{64}); });
    tensor.data = memory_.get();
    std::memset(tensor.data, 0xA5, bytes);
  }

  template <class T>
  static Data of(DataType type, Shape shape, const std::vector<T>& values) {
    Data made(type, std::move(shape));
    std::copy(values.begin(), values.end(), made.tensor.as<T>());
    return made;
  }
  static Data integers(const std::vector<int64_t>& values) {
    return of<int64_t>(DataType::int64, {static_cast<int64_t>(values.size())}, values);
  }
  static Data random(Random& random, DataType type, Shape shape) {
    Data made(type, std::move(shape));
    auto* bytes = made.tensor.as<uint8_t>();
    for (size_t i = 0; i < made.bytes(); ++i) bytes[i] = static_cast<uint8_t>(random.integer(0, 255));
    return made;
  }

  size_t bytes() const { return static_cast<size_t>(tensor.count()) * qdqtool::size_of(tensor.type); }
  // Element i of an integer tensor.
  int64_t at(int64_t i) const {
    switch (tensor.type) {
      case DataType::uint8: return tensor.as<uint8_t>()[i];
      case DataType::int8: return tensor.as<int8_t>()[i];
      case DataType::uint16: return tensor.as<uint16_t>()[i];
      case DataType::int16: return tensor.as<int16_t>()[i];
      case DataType::int32: return tensor.as<int32_t>()[i];
      case DataType::int64: return tensor.as<int64_t>()[i];
      default: throw Error("not an integer");
    }
  }

  Tensor tensor;

 private:
  std::shared_ptr<char> memory_;
};

// Runs the bodies one after the other, the last first: parts must not lean on each other.
inline void backwards(size_t count, const std::function<void(size_t)>& body) {
  while (count-- > 0) body(count);
}

inline std::vector<Tensor> tensors_of(const std::vector<Data>& data) {
  std::vector<Tensor> tensors;
  for (const Data& one : data) tensors.push_back(one.tensor);
  return tensors;
}

// A node and its inputs; those from `constants` on are known when the kernel is made.
struct Case {
  std::string key;  // of the table: "ai.qdqtool::Add"
  NodeInfo node;
  std::vector<Data> inputs;
  size_t constants = 0;
};

inline std::unique_ptr<Kernel> prepared(Case& test) {
  test.node.name = "node";
  test.node.op_type = test.key.substr(test.key.find("::") + 2);
  test.node.inputs = tensors_of(test.inputs);
  for (size_t i = 0; i < test.constants; ++i) test.node.inputs[i].data = nullptr;
  return qdqtool::operators().at(test.key)->make(test.node);
}

// Outputs of one run, prepared, inferred and given memory as the provider does.
inline std::vector<Data> outputs_of(Case& test, const ParallelFor& parallel = backwards) {
  const std::unique_ptr<Kernel> kernel = prepared(test);
  const std::vector<Tensor> inputs = tensors_of(test.inputs);
  std::vector<Tensor> known = inputs;  // what is known before the run
  for (size_t i = 0; i < test.constants; ++i) known[i].data = nullptr;
  const std::vector<Shape> shapes = kernel->infer(known);
  std::vector<Data> outputs;
  for (size_t i = 0; i < shapes.size(); ++i) outputs.emplace_back(test.node.outputs.at(i), shapes[i]);
  const Data scratch(DataType::uint8, {static_cast<int64_t>(kernel->scratch(known))});
  std::vector<Tensor> tensors = tensors_of(outputs);
  kernel->run(inputs, tensors, scratch.tensor.data, parallel);
  return outputs;
}

// The message of the Error that a case ends with, empty when it ends well.
inline std::string error_of(Case& test) {
  try {
    outputs_of(test);
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

inline std::vector<Isa> all_isas() {
  std::vector<Isa> found{Isa::portable};
  for (const Isa isa : {Isa::avx2, Isa::avx512}) {
    if (qdqtool::has_isa(isa)) found.push_back(isa);
  }
  return found;
}

// Random cases of each kind: `whole`, or a fraction of it where the command line gives a divisor.
inline int rounds(int whole, int count, char** arguments) {
  const int divisor = count > 1 ? std::atoi(arguments[1]) : 1;
  return std::max(1, whole / std::max(1, divisor));
}

inline int failures = 0;

inline void fail(const std::string& what) {
  if (++failures <= 20) std::fprintf(stderr, "FAILED %s\n", what.c_str());
}

inline std::string text_of(const Shape& shape) {
  std::string text = "[";
  for (const int64_t length : shape) text += (text.size() > 1 ? ", " : "") + std::to_string(length);
  return text + "]";
}

// Compares an output with the integers it should be.
inline void check_equal(const Data& found, const Shape& shape, const std::vector<int64_t>& wanted,
                        const std::string& what) {
  if (found.tensor.shape != shape) {
    return fail(what + ": shape " + text_of(found.tensor.shape) + ", not " + text_of(shape));
  }
  for (size_t i = 0; i < wanted.size(); ++i) {
    if (found.at(static_cast<int64_t>(i)) == wanted[i]) continue;
    return fail(what + ": element " + std::to_string(i) + " of " + text_of(shape) + " is " +
                std::to_string(found.at(static_cast<int64_t>(i))) + ", not " + std::to_string(wanted[i]));
  }
}

// Milliseconds of the fastest of several runs on one thread.
inline double milliseconds(Case& test) {
  const std::unique_ptr<Kernel> kernel = prepared(test);
  const std::vector<Tensor> inputs = tensors_of(test.inputs);
  std::vector<Data> outputs;
  for (const Shape& shape : kernel->infer(inputs)) outputs.emplace_back(test.node.outputs.at(outputs.size()), shape);
  const Data scratch(DataType::uint8, {static_cast<int64_t>(kernel->scratch(inputs))});
  std::vector<Tensor> tensors = tensors_of(outputs);
  double best = 1e9;
  for (int i = 0; i < 30; ++i) {
    const auto start = std::chrono::steady_clock::now();
    kernel->run(inputs, tensors, scratch.tensor.data, backwards);
    best = std::min(best, std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start).count());
  }
  return best;
}

}  // namespace test
