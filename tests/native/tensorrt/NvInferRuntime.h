// The part of TensorRT's interface that csrc/tensorrt/paged_attention.cc is written against, declared from
// NVIDIA's API reference (10.3 and later), so that the plugin compiles and runs where TensorRT's own headers
// are not to be had. It says what the plugin must fit; a library built with it serves no TensorRT.
#pragma once

#include <cstddef>
#include <cstdint>

using cudaStream_t = struct CUstream_st*;

namespace nvinfer1 {

using AsciiChar = char;

enum class DataType : int32_t {
    kFLOAT = 0,
    kHALF = 1,
    kINT8 = 2,
    kINT32 = 3,
    kBOOL = 4,
    kUINT8 = 5,
    kFP8 = 6,
    kBF16 = 7
};
enum class TensorFormat : int32_t { kLINEAR = 0, kCHW2 = 1 };
enum class PluginFieldType : int32_t { kFLOAT32 = 1, kINT8 = 3, kINT32 = 5, kUNKNOWN = 8 };
enum class TensorRTPhase : int32_t { kBUILD = 0, kRUNTIME = 1 };
enum class PluginCapabilityType : int32_t { kCORE = 0, kBUILD = 1, kRUNTIME = 2 };
enum class APILanguage : int32_t { kCPP = 0, kPYTHON = 1 };

struct Dims {
    static constexpr int32_t MAX_DIMS{8};
    int32_t nbDims;
    int64_t d[MAX_DIMS];
};

class IDimensionExpr;
class IExprBuilder;
class IPluginResourceContext;

struct DimsExprs {
    int32_t nbDims;
    IDimensionExpr const* d[Dims::MAX_DIMS];
};

struct PluginTensorDesc {
    Dims dims;
    DataType type;
    TensorFormat format;
    float scale;
};

struct DynamicPluginTensorDesc {
    PluginTensorDesc desc;
    Dims min, max, opt;
};

class PluginField {
  public:
    AsciiChar const* name;
    void const* data;
    PluginFieldType type;
    int32_t length;
    PluginField(AsciiChar const* name = nullptr, void const* data = nullptr,
                PluginFieldType type = PluginFieldType::kUNKNOWN, int32_t length = 0) noexcept
        : name(name), data(data), type(type), length(length) {}
};

struct PluginFieldCollection {
    int32_t nbFields{};
    PluginField const* fields{};
};

class ILogger {
  public:
    enum class Severity : int32_t { kINTERNAL_ERROR = 0, kERROR = 1, kWARNING = 2, kINFO = 3, kVERBOSE = 4 };
    virtual void log(Severity severity, AsciiChar const* message) noexcept = 0;
    virtual ~ILogger() = default;
};

class ILoggerFinder {
  public:
    virtual ILogger* findLogger() = 0;

  protected:
    virtual ~ILoggerFinder() = default;
};

struct InterfaceInfo {
    char const* kind;
    int32_t major, minor;
};

class IVersionedInterface {
  public:
    virtual APILanguage getAPILanguage() const noexcept { return APILanguage::kCPP; }
    virtual InterfaceInfo getInterfaceInfo() const noexcept = 0;
    virtual ~IVersionedInterface() noexcept = default;
};

class IPluginCapability : public IVersionedInterface {};
class IPluginCreatorInterface : public IVersionedInterface {};

class IPluginV3 : public IVersionedInterface {
  public:
    InterfaceInfo getInterfaceInfo() const noexcept override { return {"PLUGIN", 1, 0}; }
    virtual IPluginCapability* getCapabilityInterface(PluginCapabilityType type) noexcept = 0;
    virtual IPluginV3* clone() noexcept = 0;
};

class IPluginV3OneCore : public IPluginCapability {
  public:
    InterfaceInfo getInterfaceInfo() const noexcept override { return {"PLUGIN_V3ONE_CORE", 1, 0}; }
    virtual AsciiChar const* getPluginName() const noexcept = 0;
    virtual AsciiChar const* getPluginVersion() const noexcept = 0;
    virtual AsciiChar const* getPluginNamespace() const noexcept = 0;
};

class IPluginV3OneBuild : public IPluginCapability {
  public:
    InterfaceInfo getInterfaceInfo() const noexcept override { return {"PLUGIN_V3ONE_BUILD", 1, 0}; }
    virtual int32_t configurePlugin(DynamicPluginTensorDesc const* in, int32_t inputs,
                                    DynamicPluginTensorDesc const* out, int32_t outputs) noexcept = 0;
    virtual int32_t getOutputDataTypes(DataType* output_types, int32_t outputs, DataType const* input_types,
                                       int32_t inputs) const noexcept = 0;
    virtual int32_t getOutputShapes(DimsExprs const* in, int32_t inputs, DimsExprs const* shape_inputs,
                                    int32_t shape_input_count, DimsExprs* out, int32_t outputs,
                                    IExprBuilder& builder) noexcept = 0;
    virtual bool supportsFormatCombination(int32_t place, DynamicPluginTensorDesc const* tensors, int32_t inputs,
                                           int32_t outputs) noexcept = 0;
    virtual int32_t getNbOutputs() const noexcept = 0;
    virtual size_t getWorkspaceSize(DynamicPluginTensorDesc const*, int32_t, DynamicPluginTensorDesc const*,
                                    int32_t) const noexcept {
        return 0;
    }
    virtual int32_t getValidTactics(int32_t*, int32_t) noexcept { return 0; }
    virtual int32_t getNbTactics() noexcept { return 0; }
    virtual char const* getTimingCacheID() noexcept { return nullptr; }
    virtual int32_t getFormatCombinationLimit() noexcept { return 100; }
    virtual char const* getMetadataString() noexcept { return nullptr; }
};

class IPluginV3OneBuildV2 : public IPluginV3OneBuild {
  public:
    InterfaceInfo getInterfaceInfo() const noexcept override { return {"PLUGIN_V3ONE_BUILD", 2, 0}; }
    virtual int32_t getAliasedInput(int32_t) noexcept { return -1; }
};

class IPluginV3OneRuntime : public IPluginCapability {
  public:
    InterfaceInfo getInterfaceInfo() const noexcept override { return {"PLUGIN_V3ONE_RUNTIME", 1, 0}; }
    virtual int32_t setTactic(int32_t) noexcept { return 0; }
    virtual int32_t onShapeChange(PluginTensorDesc const* in, int32_t inputs, PluginTensorDesc const* out,
                                  int32_t outputs) noexcept = 0;
    virtual int32_t enqueue(PluginTensorDesc const* in, PluginTensorDesc const* out, void const* const* inputs,
                            void* const* outputs, void* workspace, cudaStream_t stream) noexcept = 0;
    virtual IPluginV3* attachToContext(IPluginResourceContext* context) noexcept = 0;
    virtual PluginFieldCollection const* getFieldsToSerialize() noexcept = 0;
};

class IPluginCreatorV3One : public IPluginCreatorInterface {
  public:
    InterfaceInfo getInterfaceInfo() const noexcept override { return {"PLUGIN CREATOR_V3ONE", 1, 0}; }
    virtual IPluginV3* createPlugin(AsciiChar const* name, PluginFieldCollection const* fields,
                                    TensorRTPhase phase) noexcept = 0;
    virtual PluginFieldCollection const* getFieldNames() noexcept = 0;
    virtual AsciiChar const* getPluginName() const noexcept = 0;
    virtual AsciiChar const* getPluginVersion() const noexcept = 0;
    virtual AsciiChar const* getPluginNamespace() const noexcept = 0;
};

}  // namespace nvinfer1
