// The part of onnxruntime's C interface that this library uses, in declarations of our own: no header of onnxruntime is needed to build.
//
// onnxruntime hands out tables of function pointers that are only ever appended to, so a function is its number in a table (its slot)
// and its signature. Structures that we hand to onnxruntime begin with the version of the interface they were written for and end with
// spare null words: members of later versions, all of which may be null.
#pragma once
#include <cstddef>
#include <cstdint>

namespace qdqtool::ort {

#ifdef _WIN32
using PathChar = wchar_t;
#define QDQTOOL_EXPORT extern "C" __declspec(dllexport)
#else
using PathChar = char;
#define QDQTOOL_EXPORT extern "C" __attribute__((visibility("default")))
#endif

constexpr uint32_t oldest_api = 23;  // onnxruntime 1.23: the first with plugin providers that read graphs
constexpr uint32_t newest_api = 29;  // what the structures below were written for

// Objects of onnxruntime, known by address only.
struct Status; struct Env; struct SessionOptions; struct RunOptions; struct Logger; struct Allocator; struct MemoryInfo;
struct Value; struct TypeInfo; struct TensorInfo; struct Graph; struct Node; struct ValueInfo; struct OpAttr; struct KeyValues;
struct KernelInfo; struct KernelContext; struct ShapeInferContext; struct CustomOpDomain;
struct HardwareDevice; struct EpDevice; struct SupportInfo; struct NodeComputeContext;
struct CustomOp; struct EpFactory; struct Ep;

struct ApiBase {
  const void* const* (*GetApi)(uint32_t version);
  const char* (*GetVersionString)();
};

// One function of a table, called like a function.
template <size_t Number, class Signature>
struct Slot;
template <size_t Number, class Result, class... Arguments>
struct Slot<Number, Result(Arguments...)> {
  const void* const* table;
  Result operator()(Arguments... arguments) const {
    return reinterpret_cast<Result (*)(Arguments...)>(const_cast<void*>(table[Number]))(arguments...);
  }
};

constexpr int fail = 1;  // an error code. Not EP_FAIL: after that one Python runs the whole model on the CPU instead
enum AttributeType { type_int = 1, type_ints, type_float, type_floats, type_string, type_strings, type_graph, type_tensor };
enum DeviceType { device_cpu = 0, device_npu = 2 };
enum Compatibility { not_applicable = 0, optimal = 1, prefer_recompilation = 2, unsupported = 3 };

// The tables of one onnxruntime: functions that 1.23 has, unless the line says otherwise.
struct Tables {
  const void* const* t;  // OrtApi
  Slot<0, Status*(int code, const char* message)> CreateStatus{t};
  Slot<2, const char*(const Status*)> GetErrorMessage{t};
  Slot<26, Status*(const char* domain, CustomOpDomain** out)> CreateCustomOpDomain{t};
  Slot<27, Status*(CustomOpDomain*, const CustomOp*)> CustomOpDomain_Add{t};
  Slot<28, Status*(SessionOptions*, CustomOpDomain*)> AddCustomOpDomain{t};
  Slot<51, Status*(Value*, void** out)> GetTensorMutableData{t};
  Slot<55, Status*(const TypeInfo*, const TensorInfo** out)> CastTypeInfoToTensorInfo{t};
  Slot<57, Status*(TensorInfo** out)> CreateTensorTypeAndShapeInfo{t};
  Slot<58, Status*(TensorInfo*, int type)> SetTensorElementType{t};
  Slot<59, Status*(TensorInfo*, const int64_t* dims, size_t count)> SetDimensions{t};
  Slot<60, Status*(const TensorInfo*, int* out)> GetTensorElementType{t};
  Slot<61, Status*(const TensorInfo*, size_t* out)> GetDimensionsCount{t};
  Slot<62, Status*(const TensorInfo*, int64_t* out, size_t count)> GetDimensions{t};
  Slot<63, Status*(const TensorInfo*, const char** out, size_t count)> GetSymbolicDimensions{t};
  Slot<65, Status*(const Value*, TensorInfo** out)> GetTensorTypeAndShape{t};
  Slot<85, Status*(const KernelInfo*, const char* name, float* out)> KernelInfoGetAttribute_float{t};
  Slot<86, Status*(const KernelInfo*, const char* name, int64_t* out)> KernelInfoGetAttribute_int64{t};
  Slot<87, Status*(const KernelInfo*, const char* name, char* out, size_t* size)> KernelInfoGetAttribute_string{t};
  Slot<90, Status*(const KernelContext*, size_t index, const Value** out)> KernelContext_GetInput{t};
  Slot<91, Status*(KernelContext*, size_t index, const int64_t* dims, size_t count, Value** out)> KernelContext_GetOutput{t};
  Slot<93, void(Status*)> ReleaseStatus{t};
  Slot<96, void(Value*)> ReleaseValue{t};
  Slot<98, void(TypeInfo*)> ReleaseTypeInfo{t};
  Slot<99, void(TensorInfo*)> ReleaseTensorTypeAndShapeInfo{t};
  Slot<101, void(CustomOpDomain*)> ReleaseCustomOpDomain{t};
  Slot<162, Status*(const KernelInfo*, const char* name, float* out, size_t* size)> KernelInfoGetAttributeArray_float{t};
  Slot<163, Status*(const KernelInfo*, const char* name, int64_t* out, size_t* size)> KernelInfoGetAttributeArray_int64{t};
  Slot<211, Status*(const char* name, const void* data, int length, int type, OpAttr** out)> CreateOpAttr{t};
  Slot<212, void(OpAttr*)> ReleaseOpAttr{t};
  Slot<230, Status*(const KernelInfo*, size_t* out)> KernelInfo_GetInputCount{t};
  Slot<231, Status*(const KernelInfo*, size_t* out)> KernelInfo_GetOutputCount{t};
  Slot<234, Status*(const KernelInfo*, size_t index, TypeInfo** out)> KernelInfo_GetInputTypeInfo{t};
  Slot<235, Status*(const KernelInfo*, size_t index, TypeInfo** out)> KernelInfo_GetOutputTypeInfo{t};
  Slot<244, Status*(const KernelInfo*, char* out, size_t* size)> KernelInfo_GetNodeName{t};
  Slot<249, Status*(const KernelInfo*, size_t index, int* is_constant, const Value** out)> KernelInfoGetConstantInput_tensor{t};
  Slot<267, Status*(const ShapeInferContext*, size_t* out)> ShapeInferContext_GetInputCount{t};
  Slot<268, Status*(const ShapeInferContext*, size_t index, TensorInfo** out)> ShapeInferContext_GetInputTypeShape{t};
  Slot<269, Status*(const ShapeInferContext*, const char* name, const OpAttr** out)> ShapeInferContext_GetAttribute{t};
  Slot<270, Status*(const ShapeInferContext*, size_t index, const TensorInfo*)> ShapeInferContext_SetOutputTypeShape{t};
  Slot<271, Status*(TensorInfo*, const char** names, size_t count)> SetSymbolicDimensions{t};
  Slot<272, Status*(const OpAttr*, int type, void* out, size_t bytes, size_t* needed)> ReadOpAttr{t};
  Slot<274, Status*(const KernelContext*, void (*body)(void* user, size_t index), size_t total, size_t batches, void* user)>
      KernelContext_ParallelFor{t};
  Slot<286, void(Node*)> ReleaseNode{t};
  Slot<289, Status*(const ValueInfo*, const char** out)> GetValueInfoName{t};
  Slot<290, Status*(const ValueInfo*, const TypeInfo** out)> GetValueInfoTypeInfo{t};
  Slot<291, const void* const*()> GetModelEditorApi{t};
  Slot<295, void(KeyValues** out)> CreateKeyValuePairs{t};
  Slot<296, void(KeyValues*, const char* key, const char* value)> AddKeyValuePair{t};
  Slot<298, void(const KeyValues*, const char* const** keys, const char* const** values, size_t* count)> GetKeyValuePairs{t};
  Slot<300, void(KeyValues*)> ReleaseKeyValuePairs{t};
  Slot<307, int(const HardwareDevice*)> HardwareDevice_Type{t};
  Slot<317, const void* const*()> GetEpApi{t};
  Slot<318, Status*(const Value*, size_t* out)> GetTensorSizeInBytes{t};
  Slot<326, Status*(const ValueInfo*, const Value** out)> ValueInfo_GetInitializerValue{t};
  Slot<331, Status*(const ValueInfo*, bool* out)> ValueInfo_IsConstantInitializer{t};
  Slot<332, Status*(const ValueInfo*, bool* out)> ValueInfo_IsFromOuterScope{t};
  Slot<333, Status*(const Graph*, const char** out)> Graph_GetName{t};
  Slot<334, Status*(const Graph*, const PathChar** out)> Graph_GetModelPath{t};
  Slot<335, Status*(const Graph*, int64_t* out)> Graph_GetOnnxIRVersion{t};
  Slot<336, Status*(const Graph*, size_t* out)> Graph_GetNumOperatorSets{t};
  Slot<337, Status*(const Graph*, const char** domains, int64_t* versions, size_t count)> Graph_GetOperatorSets{t};
  Slot<338, Status*(const Graph*, size_t* out)> Graph_GetNumInputs{t};
  Slot<339, Status*(const Graph*, const ValueInfo** out, size_t count)> Graph_GetInputs{t};
  Slot<340, Status*(const Graph*, size_t* out)> Graph_GetNumOutputs{t};
  Slot<341, Status*(const Graph*, const ValueInfo** out, size_t count)> Graph_GetOutputs{t};
  Slot<342, Status*(const Graph*, size_t* out)> Graph_GetNumInitializers{t};
  Slot<343, Status*(const Graph*, const ValueInfo** out, size_t count)> Graph_GetInitializers{t};
  Slot<344, Status*(const Graph*, size_t* out)> Graph_GetNumNodes{t};
  Slot<345, Status*(const Graph*, const Node** out, size_t count)> Graph_GetNodes{t};
  Slot<346, Status*(const Graph*, const Node** out)> Graph_GetParentNode{t};
  Slot<349, Status*(const Node*, const char** out)> Node_GetName{t};
  Slot<350, Status*(const Node*, const char** out)> Node_GetOperatorType{t};
  Slot<351, Status*(const Node*, const char** out)> Node_GetDomain{t};
  Slot<353, Status*(const Node*, size_t* out)> Node_GetNumInputs{t};
  Slot<354, Status*(const Node*, const ValueInfo** out, size_t count)> Node_GetInputs{t};
  Slot<355, Status*(const Node*, size_t* out)> Node_GetNumOutputs{t};
  Slot<356, Status*(const Node*, const ValueInfo** out, size_t count)> Node_GetOutputs{t};
  Slot<357, Status*(const Node*, size_t* out)> Node_GetNumImplicitInputs{t};
  Slot<358, Status*(const Node*, const ValueInfo** out, size_t count)> Node_GetImplicitInputs{t};
  Slot<359, Status*(const Node*, size_t* out)> Node_GetNumAttributes{t};
  Slot<360, Status*(const Node*, const OpAttr** out, size_t count)> Node_GetAttributes{t};
  Slot<361, Status*(const Node*, const char* name, const OpAttr** out)> Node_GetAttributeByName{t};
  Slot<362, Status*(const OpAttr*, Value** out)> OpAttr_GetTensorAttributeAsOrtValue{t};
  Slot<363, Status*(const OpAttr*, int* out)> OpAttr_GetType{t};
  Slot<364, Status*(const OpAttr*, const char** out)> OpAttr_GetName{t};
  Slot<378, Status*(const Value*, const void** out)> GetTensorData{t};
  Slot<379, Status*(const SessionOptions*, KeyValues** out)> GetSessionOptionsConfigEntries{t};
  // From 1.24: whether the rank is known; 1.23 cannot tell a tensor of unknown rank from a scalar.
  Slot<390, bool(const TensorInfo*)> TensorTypeAndShape_HasShape{t};
  // From 1.24: type and shape of a value without a copy.
  Slot<414, Status*(const Value*, int* type, const int64_t** dims, size_t* count)> GetTensorElementTypeAndShapeDataReference{t};
};

struct EpTables {
  const void* const* t;  // OrtEpApi
  Slot<0, Status*(EpFactory*, const HardwareDevice*, const KeyValues* metadata, const KeyValues* options, EpDevice** out)>
      CreateEpDevice{t};
  Slot<2, Status*(SupportInfo*, const Node* const* nodes, size_t count, const void* options)> AddNodesToFuse{t};
  // From 1.24: a device that no driver has found.
  Slot<16, Status*(int type, uint32_t vendor, uint32_t device, const char* name, const KeyValues* metadata, HardwareDevice** out)>
      CreateHardwareDevice{t};
  Slot<17, void(HardwareDevice*)> ReleaseHardwareDevice{t};
};

struct EditorTables {
  const void* const* t;  // OrtModelEditorApi
  // Frees the attributes that it has taken, and makes them null in the list.
  Slot<6, Status*(const char* op, const char* domain, const char* name, const char* const* inputs, size_t input_count,
                  const char* const* outputs, size_t output_count, OpAttr** attributes, size_t attribute_count, Node** out)>
      CreateNode{t};
};

struct EpFactory {
  uint32_t version = 0;
  const char* (*GetName)(const EpFactory*) = nullptr;
  const char* (*GetVendor)(const EpFactory*) = nullptr;
  Status* (*GetSupportedDevices)(EpFactory*, const HardwareDevice* const*, size_t, EpDevice** out, size_t max, size_t* count) = nullptr;
  Status* (*CreateEp)(EpFactory*, const HardwareDevice* const*, const KeyValues* const*, size_t, const SessionOptions*, const Logger*,
                      Ep** out) = nullptr;
  void (*ReleaseEp)(EpFactory*, Ep*) = nullptr;
  uint32_t (*GetVendorId)(const EpFactory*) = nullptr;
  const char* (*GetVersion)(const EpFactory*) = nullptr;
  Status* (*ValidateCompiledModelCompatibilityInfo)(EpFactory*, const HardwareDevice* const*, size_t, const char* info, int* out) = nullptr;
  Status* (*CreateAllocator)(EpFactory*, const MemoryInfo*, const KeyValues*, Allocator** out) = nullptr;
  void (*ReleaseAllocator)(EpFactory*, Allocator*) = nullptr;
  Status* (*CreateDataTransfer)(EpFactory*, void** out) = nullptr;  // onnxruntime calls it without looking whether it is there
  bool (*IsStreamAware)(const EpFactory*) = nullptr;
  Status* (*CreateSyncStreamForDevice)(EpFactory*, const void*, const KeyValues*, void** out) = nullptr;
  void* later[32] = {};
};

struct NodeComputeInfo {
  uint32_t version = 0;
  Status* (*CreateState)(NodeComputeInfo*, NodeComputeContext*, void** out) = nullptr;
  Status* (*Compute)(NodeComputeInfo*, void* state, KernelContext*) = nullptr;
  void (*ReleaseState)(NodeComputeInfo*, void* state) = nullptr;
  void* later[4] = {};
};

struct Ep {
  uint32_t version = 0;
  const char* (*GetName)(const Ep*) = nullptr;
  Status* (*GetCapability)(Ep*, const Graph*, SupportInfo*) = nullptr;
  Status* (*Compile)(Ep*, const Graph** graphs, const Node** fused, size_t count, NodeComputeInfo** infos, Node** context_nodes) = nullptr;
  void (*ReleaseNodeComputeInfos)(Ep*, NodeComputeInfo**, size_t) = nullptr;
  Status* (*GetPreferredDataLayout)(Ep*, int* out) = nullptr;
  Status* (*ShouldConvertDataLayoutForOp)(Ep*, const char* domain, const char* op, int layout, int* out) = nullptr;
  Status* (*SetDynamicOptions)(Ep*, const char* const* keys, const char* const* values, size_t count) = nullptr;
  Status* (*OnRunStart)(Ep*, const RunOptions*) = nullptr;
  Status* (*OnRunEnd)(Ep*, const RunOptions*, bool) = nullptr;
  Status* (*CreateAllocator)(Ep*, const MemoryInfo*, Allocator** out) = nullptr;
  Status* (*CreateSyncStreamForDevice)(Ep*, const void*, void** out) = nullptr;
  const char* (*GetCompiledModelCompatibilityInfo)(Ep*, const Graph*) = nullptr;
  void* later[40] = {};
};

struct NodeFusionOptions {
  uint32_t version = 0;
  bool drop_constant_initializers = false;
  void* later[4] = {};
};

struct CustomOp {
  uint32_t version = 0;
  void* (*CreateKernel)(const CustomOp*, const void* api, const KernelInfo*) = nullptr;
  const char* (*GetName)(const CustomOp*) = nullptr;
  const char* (*GetExecutionProviderType)(const CustomOp*) = nullptr;
  int (*GetInputType)(const CustomOp*, size_t) = nullptr;
  size_t (*GetInputTypeCount)(const CustomOp*) = nullptr;
  int (*GetOutputType)(const CustomOp*, size_t) = nullptr;
  size_t (*GetOutputTypeCount)(const CustomOp*) = nullptr;
  void (*KernelCompute)(void*, KernelContext*) = nullptr;
  void (*KernelDestroy)(void*) = nullptr;
  int (*GetInputCharacteristic)(const CustomOp*, size_t) = nullptr;
  int (*GetOutputCharacteristic)(const CustomOp*, size_t) = nullptr;
  int (*GetInputMemoryType)(const CustomOp*, size_t) = nullptr;
  int (*GetVariadicInputMinArity)(const CustomOp*) = nullptr;
  int (*GetVariadicInputHomogeneity)(const CustomOp*) = nullptr;
  int (*GetVariadicOutputMinArity)(const CustomOp*) = nullptr;
  int (*GetVariadicOutputHomogeneity)(const CustomOp*) = nullptr;
  Status* (*CreateKernelV2)(const CustomOp*, const void* api, const KernelInfo*, void** out) = nullptr;
  Status* (*KernelComputeV2)(void*, KernelContext*) = nullptr;
  Status* (*InferOutputShape)(const CustomOp*, ShapeInferContext*) = nullptr;
  int (*GetStartVersion)(const CustomOp*) = nullptr;
  int (*GetEndVersion)(const CustomOp*) = nullptr;
  size_t (*GetMayInplace)(int**, int**) = nullptr;
  void (*ReleaseMayInplace)(int*, int*) = nullptr;
  size_t (*GetAliasMap)(int**, int**) = nullptr;
  void (*ReleaseAliasMap)(int*, int*) = nullptr;
  void* later[4] = {};
};

}  // namespace qdqtool::ort
