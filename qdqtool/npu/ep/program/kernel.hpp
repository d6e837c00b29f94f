// What a kernel is: one operator of a program, prepared once, run many times, from several threads at a time.
#pragma once
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

namespace qdqtool {

using Shape = std::vector<int64_t>;

// Numbers of TensorProto.DataType, which are also onnxruntime's up to 23.
enum class DataType : int32_t {
  none = 0, float32 = 1, uint8 = 2, int8 = 3, uint16 = 4, int16 = 5, int32 = 6, int64 = 7, boolean = 9, float16 = 10, float64 = 11,
  uint32 = 12, uint64 = 13, bfloat16 = 16
};

size_t size_of(DataType type);              // bytes of one element; throws Error for a type without kernels
int64_t count_of(const Shape& shape);       // number of elements; throws Error when a dimension is negative or the product overflows

// What is wrong with a program or an input, in one line that names the node. It becomes an OrtStatus, never a crash.
struct Error : std::runtime_error {
  using std::runtime_error::runtime_error;
};

// A tensor that somebody else owns. data is null for an input that was left out.
struct Tensor {
  DataType type = DataType::none;
  Shape shape;
  void* data = nullptr;
  int64_t count() const { return count_of(shape); }
  template <class T> T* as() { return static_cast<T*>(data); }
  template <class T> const T* as() const { return static_cast<const T*>(data); }
};

// Attributes by name. Each getter throws Error when the attribute is there with another type; without a default also when it is absent.
struct Attributes {
  std::map<std::string, int64_t> ints;
  std::map<std::string, float> floats;
  std::map<std::string, std::string> strings;
  std::map<std::string, std::vector<int64_t>> int_lists;
  std::map<std::string, std::vector<float>> float_lists;

  int64_t integer(const std::string& name) const;
  int64_t integer(const std::string& name, int64_t fallback) const;
  float real(const std::string& name, float fallback) const;
  std::string text(const std::string& name, const std::string& fallback) const;
  std::vector<int64_t> integers(const std::string& name, const std::vector<int64_t>& fallback) const;
};

// Runs body(0) … body(count - 1), possibly at once on the threads of the session; returns when all are done. body must not throw.
using ParallelFor = std::function<void(size_t count, const std::function<void(size_t)>& body)>;

// Which instructions a kernel may use: the provider's option `isa`. best: what the processor has.
enum class Isa { best, portable, avx2, avx512 };

// What a node knows before it is run. Constants have type, shape and data; other inputs have their type alone.
struct NodeInfo {
  std::string name;                 // for messages
  std::string op_type;
  Attributes attributes;
  std::vector<Tensor> inputs;       // data is null unless it is a constant (which outlives the kernel); a left-out input has type none
  std::vector<DataType> outputs;    // types of the outputs
  Isa isa = Isa::best;
};

// One prepared operator. Prepared in the constructor (weights packed once); run() is const: no state between runs.
class Kernel {
 public:
  virtual ~Kernel() = default;
  // Shapes of the outputs for these inputs. Inputs have type and shape; only constants are sure to have data (behind the provider no
  // other has; throw Error when a shape depends on one).
  virtual std::vector<Shape> infer(const std::vector<Tensor>& inputs) const = 0;
  // Bytes of memory that one run with these inputs needs besides its outputs (64-byte aligned when handed in).
  virtual size_t scratch(const std::vector<Tensor>& inputs) const { (void)inputs; return 0; }
  // Whether the one output is the first input under another shape, byte for byte: then the provider runs nothing and shares the memory.
  virtual bool is_view() const { return false; }
  // Computes the outputs, whose memory is there with the shapes of infer(). Inputs and outputs never overlap.
  virtual void run(const std::vector<Tensor>& inputs, std::vector<Tensor>& outputs, void* scratch, const ParallelFor& parallel) const = 0;
};

using MakeKernel = std::unique_ptr<Kernel> (*)(const NodeInfo& node);

}  // namespace qdqtool
