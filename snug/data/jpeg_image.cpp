#include "snug/data/jpeg_image.h"

// jpeglib.h uses these without including them.
#include <cstddef>
#include <cstdio>
// jerror.h builds on it.
#include <jpeglib.h>
// What jpeglib.h leaves to it.
#include <jerror.h>

#include <algorithm>
#include <array>
#include <csetjmp>

#include "snug/data/image_pixels.h"

namespace snug::data {
namespace {

constexpr int kMostScans = 500;  // each costs a pass over all pixels, and a few bytes of the file

/// libjpeg's state. Its errors jump to where setjmp was called last: to the start of one of the functions below, in
/// which nothing with a destructor lives.
struct JpegDecoder {
  JpegDecoder() = default;
  JpegDecoder(const JpegDecoder&) = delete;
  JpegDecoder& operator=(const JpegDecoder&) = delete;
  ~JpegDecoder() { jpeg_destroy_decompress(&info); }  // also before it was created: all is zero then

  jpeg_decompress_struct info{};
  jpeg_error_mgr errors{};
  jpeg_progress_mgr progress{};
  std::jmp_buf jump{};
  std::array<char, JMSG_LENGTH_MAX> message{};
};

[[noreturn]] void give_up(j_common_ptr info) {
  auto* const decoder = static_cast<JpegDecoder*>(info->client_data);
  info->err->format_message(info, decoder->message.data());
  std::longjmp(decoder->jump, 1);
}

/// Warnings after which pixels are made up.
void on_message(j_common_ptr info, int level) {
  constexpr std::array kDamage{JWRN_JPEG_EOF, JWRN_HIT_MARKER, JWRN_HUFF_BAD_CODE, JWRN_ARITH_BAD_CODE,
                               JWRN_MUST_RESYNC};
  if (level < 0 && std::ranges::count(kDamage, static_cast<J_MESSAGE_CODE>(info->err->msg_code)) > 0) give_up(info);
}

void on_progress(j_common_ptr info) {
  if (reinterpret_cast<j_decompress_ptr>(info)->input_scan_number <= kMostScans) return;
  auto* const decoder = static_cast<JpegDecoder*>(info->client_data);
  constexpr std::string_view kMessage = "it has more than 500 scans";
  *std::ranges::copy(kMessage, decoder->message.begin()).out = '\0';
  std::longjmp(decoder->jump, 1);
}

bool read_jpeg_header(JpegDecoder& decoder, const std::uint8_t* bytes, std::size_t size) {
  if (setjmp(decoder.jump) != 0) return false;
  jpeg_decompress_struct& info = decoder.info;
  info.err = jpeg_std_error(&decoder.errors);
  info.err->error_exit = give_up;
  info.err->emit_message = on_message;
  info.client_data = &decoder;
  jpeg_create_decompress(&info);
  decoder.progress.progress_monitor = on_progress;
  info.progress = &decoder.progress;
  jpeg_mem_src(&info, bytes, static_cast<unsigned long>(size));
  jpeg_read_header(&info, TRUE);
  const bool inks = info.jpeg_color_space == JCS_CMYK || info.jpeg_color_space == JCS_YCCK;
  info.out_color_space = inks ? JCS_CMYK : JCS_RGB;
  return true;
}

bool read_jpeg_rows(JpegDecoder& decoder, std::uint8_t* pixels, std::size_t row_bytes) {
  if (setjmp(decoder.jump) != 0) return false;
  jpeg_decompress_struct& info = decoder.info;
  jpeg_start_decompress(&info);
  while (info.output_scanline < info.output_height) {
    JSAMPROW row = pixels + info.output_scanline * row_bytes;
    jpeg_read_scanlines(&info, &row, 1);
  }
  jpeg_finish_decompress(&info);
  return true;
}

/// What is left of white light. Adobe's files hold the light that passes in place of the ink.
at::Tensor rgb_of_inks(const at::Tensor& inks, bool inverted, std::int64_t most_pixels, std::string_view name) {
  at::Tensor rgb = room_for_pixels(inks.size(0), inks.size(1), 3, most_pixels, name);
  auto* out = rgb.mutable_data_ptr<std::uint8_t>();
  const auto* in = inks.const_data_ptr<std::uint8_t>();
  for (const auto* const end = in + inks.numel(); in != end; in += 4) {
    const auto light = [&](int ink) { return static_cast<unsigned>(inverted ? in[ink] : 255 - in[ink]); };
    for (int channel = 0; channel < 3; ++channel) {
      *out++ = static_cast<std::uint8_t>((light(channel) * light(3) + 127) / 255);
    }
  }
  return rgb;
}

}  // namespace

at::Tensor decode_jpeg(std::span<const std::uint8_t> file, std::string_view name, std::int64_t most_pixels) {
  JpegDecoder decoder;
  if (!read_jpeg_header(decoder, file.data(), file.size())) refuse_image(name, decoder.message.data());
  const jpeg_decompress_struct& info = decoder.info;
  const std::int64_t channels = info.out_color_space == JCS_CMYK ? 4 : 3;
  const at::Tensor pixels = room_for_pixels(info.image_height, info.image_width, channels, most_pixels, name);
  const auto row_bytes = static_cast<std::size_t>(info.image_width) * static_cast<std::size_t>(channels);
  if (!read_jpeg_rows(decoder, pixels.mutable_data_ptr<std::uint8_t>(), row_bytes)) {
    refuse_image(name, decoder.message.data());
  }
  return channels == 3 ? pixels : rgb_of_inks(pixels, info.saw_Adobe_marker != 0, most_pixels, name);
}

}  // namespace snug::data
